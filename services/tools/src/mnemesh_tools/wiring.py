"""Builds the service from its parts; the only place that picks them."""

from __future__ import annotations

import structlog
from mnemesh.tools.v1 import (
    execution_service_pb2,
    execution_service_pb2_grpc,
    mcp_servers_service_pb2,
    mcp_servers_service_pb2_grpc,
    tools_service_pb2,
    tools_service_pb2_grpc,
)
from mnemesh_kit.background import periodic
from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.server import Assembly
from mnemesh_kit.sql import Database

from mnemesh_tools.config import Config
from mnemesh_tools.model.builtin_tools import Builtins
from mnemesh_tools.rpc.tools import ExecutionServicer, McpServersServicer, ToolsServicer
from mnemesh_tools.sandbox import Isolation, Sandbox
from mnemesh_tools.store.sql.tools import SqlToolStore
from mnemesh_tools.usecases.executions import ExecutionService
from mnemesh_tools.usecases.tools import ToolService

LEDGER_PURGE_SECONDS = 3600.0
_log = structlog.get_logger("mnemesh.tools")


async def assemble(config: Config, *, clock: Clock | None = None, ids: IdSource | None = None) -> Assembly:
    """The tools service over its migrated database and a probed sandbox, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    await database.migrate("mnemesh_tools")
    store = SqlToolStore(database, clock)
    sandbox = await Sandbox.open(config.sandbox)
    service = ToolService(store, clock, ids, Builtins.shipped())
    _tell(sandbox.isolation, config)
    return Assembly(
        name="tools",
        servicers=[
            (tools_service_pb2_grpc.add_ToolServiceServicer_to_server, ToolsServicer(service)),
            (
                execution_service_pb2_grpc.add_ExecutionServiceServicer_to_server,
                ExecutionServicer(ExecutionService(store, sandbox)),
            ),
            # What it does not define, the generated base answers as UNIMPLEMENTED.
            (mcp_servers_service_pb2_grpc.add_McpServerServiceServicer_to_server, McpServersServicer()),
        ],
        service_names=[
            tools_service_pb2.DESCRIPTOR.services_by_name["ToolService"].full_name,
            execution_service_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name,
            mcp_servers_service_pb2.DESCRIPTOR.services_by_name["McpServerService"].full_name,
        ],
        background=[periodic(LEDGER_PURGE_SECONDS, store.purge_requests)],
        close=[database.close],
    )


def _tell(isolation: Isolation, config: Config) -> None:
    level = isolation.level.name.lower()
    facts = {"level": level, "layers": sorted(isolation.layers), "refused": dict(isolation.missing)}
    if isolation.level < config.sandbox.minimum:
        _log.error("tools will not run: the sandbox is below the minimum", minimum=config.min_sandbox, **facts)
    else:
        _log.info("sandbox", **facts)
