"""Fixtures of the tools tests: sandboxes with several sets of layers, and the service on each engine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
import pytest_asyncio
from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceStub
from mnemesh.tools.v1.mcp_servers_service_pb2_grpc import McpServerServiceStub
from mnemesh.tools.v1.tools_service_pb2_grpc import ToolServiceStub
from mnemesh_kit.server import RunningServer
from mnemesh_tools.config import Config
from mnemesh_tools.sandbox import Level, Outcome, Sandbox, SandboxSettings, Task
from mnemesh_tools.sandbox.inside import plan as layer
from mnemesh_tools.wiring import assemble

_WITHOUT_NAMESPACES = {layer.LANDLOCK, layer.SECCOMP} | ({layer.OWN_UID} if os.geteuid() == 0 else set())
PROFILES = {"all layers": None, "no namespaces": _WITHOUT_NAMESPACES}
SETTINGS = SandboxSettings(
    minimum=Level.MINIMAL,
    cpu_seconds=2,
    memory_mb=256,
    processes=24,
    disk_mb=8,
    files=2_000,
    stream_bytes=100_000,
)

Run = Callable[..., Coroutine[Any, Any, Outcome]]


@pytest_asyncio.fixture(params=list(PROFILES))
async def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """A sandbox with all layers that the host supports, and one as on a host without namespaces."""
    opened = await Sandbox.open(SETTINGS, layers=PROFILES[request.param])
    if opened.isolation.level is Level.NONE:
        pytest.skip(f"this host supports no isolation: {dict(opened.isolation.missing)}")
    return opened


@pytest_asyncio.fixture
async def unconfined() -> Sandbox:
    """A sandbox as on a host with neither namespaces nor Landlock: nothing confines the files of a tool."""
    if os.geteuid() != 0:
        pytest.skip("only root can change the uid of a tool")
    return await Sandbox.open(SETTINGS, layers={layer.OWN_UID, layer.SECCOMP})


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which this test creates the working directories of tools."""
    with TemporaryDirectory() as created:
        Path(created).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", created)
        yield Path(created)


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """Runs the function `tool` of a source with keyword arguments."""

    async def run(source: str, *, seconds: float = 20.0, **arguments: Any) -> Outcome:
        return await sandbox.run(Task(source, "tool", arguments), seconds)

    return run


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


async def _serve(config: Config) -> AsyncIterator[Stubs]:
    server = RunningServer()
    address = await server.start(await assemble(config), config)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Stubs(ToolServiceStub(channel), ExecutionServiceStub(channel), McpServerServiceStub(channel))
    await server.stop()


@pytest_asyncio.fixture
async def stubs(database_url: str, tmp_path: Path) -> AsyncIterator[Stubs]:
    """A running service, on each engine."""
    config = Config(port=0, data_dir=str(tmp_path), database_url=database_url, min_sandbox="minimal")
    async for stubs in _serve(config):
        yield stubs


@pytest_asyncio.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A running service on SQLite."""
    async for stubs in _serve(Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal")):
        yield stubs
