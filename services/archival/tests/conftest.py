"""A real archival server on a free port, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mnemesh_archival.config import Config
from mnemesh_archival.wiring import assemble
from mnemesh_kit.channels import Channels
from mnemesh_kit.ids import new_id
from mnemesh_kit.metrics import Gauge
from mnemesh_kit.server import RunningServer
from mnemesh_testkit.suites.archival.calls import Archival
from mnemesh_testkit.timeouts import scaled


@dataclass
class ArchivalServer(Archival):
    """An archival server and stubs that call it."""

    config: Config
    channels: Channels = field(default_factory=Channels)
    running: RunningServer = field(default_factory=RunningServer)
    index_lag: Callable[[], float] = float

    async def start(self) -> None:
        self.running = RunningServer()
        assembly = await assemble(self.config)
        (self.index_lag,) = (
            metric.read
            for metric in assembly.metrics
            if isinstance(metric, Gauge) and metric.name == "mnemesh_index_outbox_lag_seconds"
        )
        self.address = address = await self.running.start(assembly, self.config)
        self.call_through(self.channels.channel(address))

    async def indexed(self) -> None:
        """Waits until the index has every change that the indexer knows."""
        async with asyncio.timeout(scaled(30)):
            while self.index_lag():
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.running.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path / 'archival.db'}"


@pytest.fixture
async def archival(database_url: str, tmp_path: Path) -> AsyncIterator[ArchivalServer]:
    """A running server."""
    config = Config(
        port=0, data_dir=str(tmp_path), database_url=database_url, embedder="mnemesh/hashing-256", log_level="error"
    )
    async with serving(config) as archival:
        yield archival


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[ArchivalServer]:
    """Runs a server."""
    archival = ArchivalServer(config)
    await archival.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(archival.stop)
        stack.push_async_callback(archival.channels.close)
        yield archival


@pytest.fixture
def agent() -> str:
    """A new agent id."""
    return new_id("agent")
