"""Fixtures of the tools tests: sandboxes with several sets of layers, and the service on each engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from mnemesh.server.v1.audit_service_pb2 import AuditEntry, ListAuditEntriesRequest
from mnemesh.server.v1.audit_service_pb2_grpc import AuditServiceStub
from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceStub
from mnemesh.tools.v1.mcp_servers_service_pb2_grpc import McpServerServiceStub
from mnemesh.tools.v1.tools_service_pb2_grpc import ToolServiceStub
from mnemesh.tools.v1.web_service_pb2_grpc import WebServiceStub
from mnemesh_kit.server import RunningServer
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits
from mnemesh_tools.wiring import assemble


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, for each SQL engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tools.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@dataclass(frozen=True)
class Stubs:
    """The stubs of a running service."""

    tools: ToolServiceStub
    executions: ExecutionServiceStub
    mcp: McpServerServiceStub
    web: WebServiceStub
    audit: AuditServiceStub

    async def changes(self, method: str) -> list[AuditEntry]:
        """Returns the entries of the audit log by an RPC, oldest first."""
        request = ListAuditEntriesRequest(order="SORT_ORDER_ASCENDING", filter={"method": method})
        return list((await self.audit.ListAuditEntries(request)).entries)


@asynccontextmanager
async def serve(config: Config, mcp_limits: McpLimits | None = None) -> AsyncIterator[Stubs]:
    """Runs the service with these settings."""
    server = RunningServer()
    sandbox = await probe_sandbox(config.sandbox)
    # A busy machine may need longer than a creator of a server waits by default.
    limits = mcp_limits or McpLimits(create_seconds=scaled(60))
    address = await server.start(await assemble(config, sandbox=sandbox, mcp_limits=limits), config)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield Stubs(
                ToolServiceStub(channel),
                ExecutionServiceStub(channel),
                McpServerServiceStub(channel),
                WebServiceStub(channel),
                AuditServiceStub(channel),
            )
    finally:
        await server.stop()


@pytest_asyncio.fixture
async def stubs(database_url: str, tmp_path: Path) -> AsyncIterator[Stubs]:
    """A running service, on each engine."""
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    config = Config(
        port=0,
        data_dir=str(tmp_path),
        secrets_key_file=str(keys),
        database_url=database_url,
        min_sandbox="minimal",
        warm_processes=0,
        mcp_stdio="none",
    )
    async with serve(config) as stubs:
        yield stubs


@pytest_asyncio.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A running service on SQLite, whose tools may reach this host."""
    config = Config(
        port=0, data_dir=str(tmp_path), min_sandbox="minimal", private_networks="127.0.0.0/8", warm_processes=0
    )
    async with serve(config) as stubs:
        yield stubs
