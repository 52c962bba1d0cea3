"""Partners that are created with their agent, or when it switches sleep-time on."""

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_orchestrator.model.runs import RunFilter

from ..support.model import Held, call, say
from ..support.world import ME, Process, World
from .partners import Partners, answer_everything, is_partner, said


async def crew_of(world: World, process: Process, agent: Agent) -> Partners:
    (group,) = await process.stores.groups.of_manager(ME.organization_id, agent.id)
    members = [await process.agents.get(ME, agent_id) for agent_id in group.agent_ids]
    return Partners(world, agent, group, tuple(members))


async def talk(process: Process, agent: Agent, *texts: str) -> None:
    for text in texts:
        await process.send(agent, text)
        await process.idle()


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_every_fifth_turn_starts_the_partner_that_was_created_with_its_agent(
    world: World, process: Process, kind: AgentType
) -> None:
    spoken = say("Yes.") if kind is AgentType.LETTA_V1 else call("send_message", message="Yes.")
    world.model.script = answer_everything(lambda _: spoken)
    agent = await world.agent(process, kind, enable_sleeptime=True)
    crew = await crew_of(world, process, agent)
    texts = [f"message {number}" for number in range(10)]
    await talk(process, agent, *texts[:5])
    (first,) = await crew.inputs(process)
    await talk(process, agent, *texts[5:])
    assert said(await crew.inputs(process)) == texts
    assert "login" not in first
    assert "I am awake" not in first


async def test_messages_while_sleeptime_was_off_are_in_the_next_transcript(world: World, process: Process) -> None:
    world.model.script = answer_everything()
    agent = await world.agent(process, enable_sleeptime=True)
    crew = await crew_of(world, process, agent)
    await talk(process, agent, *(f"on {number}" for number in range(6)))
    await process.agents.update(ME, None, agent.id, {"enable_sleeptime": False})
    await talk(process, agent, *(f"off {number}" for number in range(6)))
    assert len(await crew.runs(process)) == 1
    await process.agents.update(ME, None, agent.id, {"enable_sleeptime": True})
    await talk(process, agent, *(f"again {number}" for number in range(4)))
    transcripts = await crew.inputs(process)
    assert len(transcripts) == 2
    assert said(transcripts) == [
        *(f"on {number}" for number in range(6)),
        *(f"off {number}" for number in range(6)),
        *(f"again {number}" for number in range(4)),
    ]


async def test_partner_of_an_older_agent_begins_with_its_next_message(world: World, process: Process) -> None:
    world.model.script = answer_everything()
    agent = await world.agent(process)
    await talk(process, agent, "before")
    await process.agents.update(ME, None, agent.id, {"enable_sleeptime": True})
    crew = await crew_of(world, process, agent)
    texts = [f"after {number}" for number in range(5)]
    await talk(process, agent, *texts)
    assert said(await crew.inputs(process)) == texts


async def test_agent_is_deleted_while_its_partner_works(world: World, process: Process) -> None:
    held = Held(call("memory_finish_edits"))
    world.model.script = lambda request: held if is_partner(request) else say("Yes.")
    agent = await world.agent(process, enable_sleeptime=True)
    crew = await crew_of(world, process, agent)
    for number in range(5):
        await process.send(agent, f"message {number}")
    await held.asked.wait()
    erased = await process.lifecycle.delete(ME, agent.id)
    await process.idle()
    assert (erased.agents, erased.contexts) == (2, 2)
    assert await process.stores.agents.list_unfinished() == ()
    assert await process.stores.groups.list_unfinished() == ()
    runs = await process.runs.list(ME, RunFilter(), PageQuery(10, ascending=True))
    assert runs.items == ()
    with pytest.raises(NotFound):
        await process.agents.get(ME, crew.members[0].id)
    assert await process.lifecycle.delete(ME, new_id("agent")) == Erased()
