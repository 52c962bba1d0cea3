"""A process that crashes in a turn, and the process that follows it."""

import pytest
from mnemesh_orchestrator.model.agents import Agent

from ..support.faults import Crash, Faults
from ..support.world import Process, World, crashed


async def die_in(world: World, process: Process, agent: Agent, name: str, *, behind: bool = True) -> int:
    """Sends, and has the process die at the first call of that name, by default once it took effect.

    Returns the number of the agent's messages before.
    """
    faults = world.faults = process.faults

    async def last_call(made: str) -> None:
        if made == name and faults.crashes_at is None:
            faults.crashes_at = faults.points - (1 if behind else 2)

    before = len(world.recall.rows[agent.id])
    faults.on_call = last_call
    with pytest.raises(Crash):
        await process.send(agent, "Go.")
    await crashed(process)
    return before


async def next_life(world: World) -> Process:
    """Starts the same instance again. It holds the leases of its crashed process."""
    world.faults = Faults()
    process = world.process()
    await process.recover()
    return process
