"""Three agents with scripts of their own."""

import pytest_asyncio

from ..support.groups import Cast
from ..support.world import Process, World


@pytest_asyncio.fixture
async def cast(world: World, process: Process) -> Cast:
    cast = Cast(world)
    await cast.join(process, "Ada", "Bob", "Cleo")
    return cast
