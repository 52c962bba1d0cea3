"""A world without a network: the real parts of the orchestrator over tiers in memory."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from .support.world import Process, World, opened


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> Iterator[None]:
    """One line per event and a plain trace: structlog's own default draws every local variable of a trace."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])]
    )
    yield
    structlog.reset_defaults()


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """What outlives a process: the database, the tiers, the clock."""
    async with opened(tmp_path) as world:
        yield world


@pytest_asyncio.fixture
async def process(world: World) -> AsyncIterator[Process]:
    """One life of the orchestrator, let go of at the end."""
    process = world.process()
    yield process
    await process.worker.stop()
