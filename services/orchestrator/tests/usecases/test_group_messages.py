"""Messages of groups, resets of their agents, and runs of deleted groups."""

import asyncio
from dataclasses import replace

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.errors import PageTokenInvalid
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.model.conversations import MessageQuery
from mnemesh_orchestrator.model.groups import ManagerConfig, ManagerType
from mnemesh_orchestrator.store.tables import groups
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.messages import Message, Role, TextPart

from ..support.group_cast import Cast, key, new_cast
from ..support.groups import Cast as Speakers
from ..support.groups import send
from ..support.model import say
from ..support.world import ME, Process, World


@pytest_asyncio.fixture
async def cast(world: World, process: Process) -> Cast:
    return await new_cast(world, process)


async def test_messages_of_a_group_are_paged_and_filtered(world: World, process: Process, cast: Cast) -> None:
    group = await process.groups.create(ME, None, cast.group(0, 1))
    for number, (agent, role) in enumerate(
        ((0, Role.USER), (0, Role.ASSISTANT), (1, Role.SYSTEM), (1, Role.ASSISTANT), (2, Role.USER))
    ):
        world.clock.advance(1)
        agent_id = cast.agents[agent].id
        message = Message(
            new_id("message"),
            role,
            world.clock.now(),
            (TextPart(str(number)),),
            group_id=group.id if agent < 2 else None,
        )
        await world.recall.append(f"{agent_id}/{number}", agent_id, [message])

    async def texts(query: MessageQuery = MessageQuery()) -> str:  # noqa: B008 -- frozen
        return "".join(message.text for message in (await process.groups.messages(ME, group.id, query)).messages)

    assert await texts() == "0123"
    assert await texts(MessageQuery(ascending=False)) == "3210"
    assert await texts(MessageQuery(agent_ids=(cast.agents[1].id,))) == "23"
    assert await texts(MessageQuery(roles=(Role.ASSISTANT,))) == "13"
    page = await process.groups.messages(ME, group.id, MessageQuery(page_size=3))
    assert await texts(MessageQuery(page_size=3, page_token=page.next_page_token)) == "3"
    assert await texts(MessageQuery(after_id=page.messages[0].id, before_id=page.messages[2].id)) == "1"
    with pytest.raises(PageTokenInvalid):
        await texts(MessageQuery(roles=(Role.USER,), page_token=page.next_page_token))


async def test_reset_empties_the_windows_of_all_agents_once(world: World, process: Process, cast: Cast) -> None:
    world.model.script = lambda request: say("Hello.")
    partner = await world.agent(process, blocks=())
    manager = ManagerConfig(ManagerType.SLEEPTIME, cast.agents[0].id, frequency=3)
    group = await process.groups.create(ME, None, replace(cast.group(manager=manager), agent_ids=(partner.id,)))
    for agent in (cast.agents[0], partner):
        await process.send(agent, "Remember.")
    assert (await process.groups.get(ME, group.id)).turns_counter == 1
    kept = await process.groups.reset(ME, None, group.id, keep_turns_counter=True)
    assert kept.turns_counter == 1
    reset = await process.groups.reset(ME, key("ResetGroupMessages"), group.id)
    assert reset.turns_counter == 0
    for agent in (cast.agents[0], partner):
        assert [message.role for message in world.window(agent).messages] == [Role.SYSTEM]
        assert len(world.recall.rows[agent.id]) > 1, "recall keeps the messages"
    newest = max(message.sequence_id for message in world.recall.rows[cast.agents[0].id])
    seen = sa.select(groups.c.seen_sequence_id, groups.c.processed_sequence_id)
    assert tuple(await world.database.read(lambda conn: conn.execute(seen).one())) == (newest, newest)
    await process.send(cast.agents[0], "Again.")
    again = await process.groups.reset(ME, key("ResetGroupMessages"), group.id)
    assert again.turns_counter == 1, "a repeat changes nothing"
    assert len(world.window(cast.agents[0]).messages) > 1


async def test_resets_of_overlapping_groups_do_not_wait_for_each_other(
    world: World, process: Process, cast: Cast
) -> None:
    first = await process.groups.create(ME, None, cast.group(0, 1, 2))
    second = await process.groups.create(ME, None, cast.group(2, 1, 0))
    async with asyncio.timeout(scaled(60)):
        await asyncio.gather(*(process.groups.reset(ME, None, group.id) for group in (first, second)))


async def test_reset_skips_a_deleted_manager(process: Process, cast: Cast) -> None:
    manager = ManagerConfig(ManagerType.SUPERVISOR, cast.agents[1].id)
    group = await process.groups.create(ME, None, cast.group(0, manager=manager))
    await process.lifecycle.delete(ME, cast.agents[1].id)
    assert (await process.groups.reset(ME, None, group.id)).manager == manager


async def test_run_of_a_group_has_its_messages_in_the_list(world: World, process: Process) -> None:
    speakers = Speakers(world)
    await speakers.join(process, "Zoe", "Ada")
    group = await speakers.group(process, "Zoe", "Ada")
    await process.send(speakers.agents["Zoe"], "Aside.")
    await send(process, group, "Hello, all.")
    found = await process.groups.messages(ME, group.id, MessageQuery())
    listed = [f"{speakers.name(message.agent_id)} {message.role}: {message.text}" for message in found.messages]
    assert [line for line in listed if " assistant: " in line] == [
        "Zoe assistant: Zoe speaks.",
        "Ada assistant: Ada speaks.",
    ]
    assert sum("Hello, all." in line for line in listed) == 2, "each member received it"
    assert not any("Aside." in line for line in listed)
    assert {message.group_id for message in found.messages} == {group.id}
