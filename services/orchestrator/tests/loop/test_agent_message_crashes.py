"""Messages between agents, with a crash at every point."""

import ast
import asyncio
from pathlib import Path

import pytest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus
from mnemesh_types.messages import Role

from ..support.faults import Crash, Faults
from ..support.model import call, say
from ..support.world import ME, World, crashed, lines, opened, require_valid
from .correspondents import ASK, BY_TAGS, SEND, TEN, named, script


async def conversation(world: World, tool: str, crashes_at: int | None) -> tuple[Agent, Agent, Agent]:
    """Lets an agent write to one or two others, in a process that crashes at a point and one that goes on."""
    world.faults = Faults()
    setup = world.process()
    ann, ben, cleo = [await named(world, setup, name, tags=("x",)) for name in ("Ann", "Ben", "Cleo")]
    arguments = {"other_agent_id": ben.id} if tool != BY_TAGS else {"match_all": ["x"], "match_some": []}
    script(
        world,
        Ann=[call(tool, message="Which tea?", **arguments), say("Thanks.")],
        Ben=[call("archival_memory_insert", content="tea"), say("Green.")],
        Cleo=[say("Black.")],
    )
    world.faults = Faults()
    world.faults.crashes_at = crashes_at
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # runs that crash end with an exception
    process = world.process()
    try:
        await process.send(ann, "Ask them.")
        await process.idle()
    except Crash:
        pass
    await crashed(process)
    return ann, ben, cleo


@pytest.mark.parametrize(
    "step", [29, pytest.param(2, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.sweep)]
)
@pytest.mark.parametrize("tool", [ASK, SEND, BY_TAGS])
async def test_messages_survive_a_crash_at_every_point(tmp_path: Path, tool: str, step: int) -> None:
    """No message is sent twice, and no reply is lost."""
    async with opened(tmp_path) as world:
        await conversation(world, tool, None)
        points = world.faults.points
    (tmp_path / "worlds").mkdir()
    async with opened(tmp_path / "worlds") as world:
        for point in range(0, points, step):
            await survives(world, tool, point)


async def survives(world: World, tool: str, point: int) -> None:
    ann, ben, cleo = await conversation(world, tool, point)
    later = Faults()
    world.faults = later
    process = world.process()
    if not (await process.runs.list(ME, RunFilter(agent_ids=(ann.id,)), TEN)).items:
        await process.send(ann, "Ask them.")  # the client repeats a request that was not stored
    while await process.stores.leases.claimable(process.lease_renewer.instance_id):
        await process.recover()
    asked = [ben, cleo] if tool == BY_TAGS else [ben]
    for agent in asked:
        received = [message for message in world.turn(agent) if message.role is Role.SYSTEM]
        assert len(received) == 1, (point, lines(world.turn(agent)))
        require_valid(world.window(agent).messages)
    assert await world.archival.texts(ben.id) == ["tea"], point
    run = await process.outcome(ann)
    assert (run.status, len(run.child_run_ids)) == (RunStatus.COMPLETED, len(asked)), point
    (returned,) = [item for message in world.turn(ann) for item in message.tool_returns]
    texts = {ben.id: "Green.", cleo.id: "Black."}
    replies = [{"agent_id": one.id, "agent_name": one.name, "response": [texts[one.id]]} for one in asked]
    if tool == SEND:
        assert returned.text == "Successfully sent message"
    else:
        assert ast.literal_eval(returned.text) == (replies if tool == BY_TAGS else replies[0]), point
    for agent in (ann, ben, cleo):
        await process.lifecycle.delete(ME, agent.id)
