"""A world without a network: the real orchestrator over the real services in this process."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from .support.world import Process, World, opened

pytest.register_assert_rewrite(f"{__package__}.loop.five_tools")


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> Iterator[None]:
    """Logs one line per event with a plain trace. structlog's default draws every local variable of a trace."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])]
    )
    yield
    structlog.reset_defaults()


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Everything that survives a process: the databases, the services, the clock."""
    async with opened(tmp_path) as world:
        yield world


@pytest_asyncio.fixture
async def process(world: World) -> AsyncIterator[Process]:
    """One process of the orchestrator, stopped at the end."""
    process = world.process()
    yield process
    await process.worker.stop()
