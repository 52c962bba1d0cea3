"""A world without a network: the real parts of the orchestrator over tiers in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from .support.world import Process, World, opened


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
    await process.conductor.stop()
