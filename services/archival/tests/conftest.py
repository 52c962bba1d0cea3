"""A real archival server on a free port, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mnemesh_archival.config import Config
from mnemesh_archival.wiring import assemble
from mnemesh_kit.channels import Channels
from mnemesh_kit.ids import new_id
from mnemesh_kit.server import RunningServer
from mnemesh_testkit.suites.archival.calls import Archival


@dataclass
class ArchivalServer(Archival):
    """An archival server and stubs that call it."""

    config: Config
    channels: Channels = field(default_factory=Channels)
    running: RunningServer = field(default_factory=RunningServer)

    async def start(self) -> None:
        self.running = RunningServer()
        self.address = address = await self.running.start(await assemble(self.config), self.config)
        self.call_through(self.channels.channel(address))

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
