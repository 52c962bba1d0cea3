"""Builds the service from its parts. Only this module chooses implementations."""

from __future__ import annotations

import structlog
from mnemesh.tools.v1 import execution_service_pb2_grpc, mcp_servers_service_pb2_grpc, tools_service_pb2_grpc
from mnemesh_kit.background import periodic
from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.server import Assembly
from mnemesh_kit.services import service
from mnemesh_kit.sql import open_database

from mnemesh_tools.config import Config
from mnemesh_tools.model.builtin_tools import BuiltinTools
from mnemesh_tools.rpc.executions import ExecutionServicer
from mnemesh_tools.rpc.mcp_servers import McpServersServicer
from mnemesh_tools.rpc.tools import ToolsServicer
from mnemesh_tools.sandbox import Isolation, Level, Sandbox
from mnemesh_tools.store.sql.tools import SqlToolStore
from mnemesh_tools.usecases.executions import ExecutionService
from mnemesh_tools.usecases.slots import FairSlots
from mnemesh_tools.usecases.sources import SourceReader
from mnemesh_tools.usecases.tools import ToolService

PURGE_SECONDS = 3600.0
_log = structlog.get_logger("mnemesh.tools")


async def assemble(
    config: Config, *, clock: Clock | None = None, ids: IdSource | None = None, sandbox: Sandbox | None = None
) -> Assembly:
    """Migrates the database, probes the sandbox and returns the service, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    database = await open_database(config, "mnemesh_tools")
    store = SqlToolStore(database, clock)
    sandbox = sandbox or await Sandbox.open(config.sandbox)
    _log_isolation(sandbox.isolation, config)
    sources = SourceReader()
    tools = ToolsServicer(ToolService(store, clock, ids, BuiltinTools.load(), sources))
    slots = FairSlots(config.max_concurrent, config.slots_per_organization, config.max_wait_seconds)
    executions = ExecutionServicer(ExecutionService(store, sandbox, slots, sources))
    return Assembly(
        name="tools",
        servicers=[
            (tools_service_pb2_grpc.add_ToolServiceServicer_to_server, tools),
            (execution_service_pb2_grpc.add_ExecutionServiceServicer_to_server, executions),
            (mcp_servers_service_pb2_grpc.add_McpServerServiceServicer_to_server, McpServersServicer()),
        ],
        service_names=service("tools").proto_services,
        background=[periodic(PURGE_SECONDS, store.purge_ledger)],
        metrics=slots.metrics(),
        properties=_properties(sandbox.isolation, config),
        close=[database.close],
    )


def _properties(isolation: Isolation, config: Config) -> dict[str, str]:
    """Returns the sandbox's level, and the bounds that hold on this host."""
    bounds = {f"sandbox.{resource}": bound for resource, bound in isolation.bounds.items()}
    return {"sandbox.level": isolation.level.name.lower(), "sandbox.minimum": config.min_sandbox, **bounds}


def _log_isolation(isolation: Isolation, config: Config) -> None:
    fields = {
        "level": isolation.level.name.lower(),
        "minimum": config.min_sandbox,
        "bounds": isolation.bounds,
        "layers": sorted(isolation.layers),
        "missing": dict(isolation.missing),
    }
    if isolation.level < config.sandbox.minimum:
        _log.error("sandbox_below_minimum", **fields)
    elif isolation.level is Level.MINIMAL:
        _log.warning("sandbox_minimal", **fields)
    else:
        _log.info("sandbox_probed", **fields)
