"""Groups with their shared blocks: each change takes effect completely or not at all, whatever fails meanwhile."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import GroupRevisionMismatch
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.conversations import MessageQuery
from mnemesh_orchestrator.model.groups import (
    GroupFilter,
    GroupOrder,
    ManagerConfig,
    ManagerType,
)
from mnemesh_orchestrator.store.tables import groups
from mnemesh_types.blocks import Block

from ..support.group_cast import Cast, key, new_cast, no_group_is_left
from ..support.world import ME, Process, World

STRANGER = Principal(new_id("org"), ME.subject_id)


@pytest_asyncio.fixture
async def cast(world: World, process: Process) -> Cast:
    return await new_cast(world, process)


async def test_shared_blocks_follow_the_members(world: World, process: Process, cast: Cast) -> None:
    zoe, ada, max_, eve = cast.agents
    draft = cast.group(0, 1, shared_block_ids=(cast.plan,), description="Writers", metadata='{"k": 1}')
    group = await process.groups.create(ME, None, draft)
    assert group == await process.groups.get(ME, group.id)
    assert (group.description, group.agent_ids, group.metadata) == ("Writers", (zoe.id, ada.id), '{"k": 1}')
    assert (group.provenance.created_by_id, group.created_at) == (ME.subject_id, world.clock.now())
    assert cast.holders(cast.plan) == "01"
    world.clock.advance(5)
    changed = await process.groups.update(ME, None, group.id, {"agent_ids": (max_.id, ada.id)})
    assert (changed.agent_ids, changed.updated_at) == ((max_.id, ada.id), world.clock.now())
    assert cast.holders(cast.plan) == "12"
    await process.groups.update(ME, None, group.id, {"shared_block_ids": (cast.notes, cast.plan)})
    assert cast.holders(cast.notes) == "12"
    manager = ManagerConfig(ManagerType.SUPERVISOR, eve.id)
    await process.groups.update(ME, None, group.id, {"manager": manager, "shared_block_ids": (cast.notes,)})
    assert (cast.holders(cast.plan), cast.holders(cast.notes)) == ("", "123")
    await process.groups.delete(ME, None, group.id)
    assert cast.holders(cast.notes) == ""
    await no_group_is_left(process)


async def test_block_that_an_agent_held_before_stays_with_it(world: World, process: Process, cast: Cast) -> None:
    world.blocks.give(cast.agents[0].id, cast.plan)
    group = await process.groups.create(ME, None, cast.group(0, 1, shared_block_ids=(cast.plan,)))
    await process.groups.update(ME, None, group.id, {"agent_ids": (cast.agents[2].id,)})
    assert cast.holders(cast.plan) == "02"
    await process.groups.delete(ME, None, group.id)
    assert cast.holders(cast.plan) == "0"


async def test_block_stays_while_another_group_of_the_agent_shares_it(
    world: World, process: Process, cast: Cast
) -> None:
    first = await process.groups.create(ME, None, cast.group(0, 1, shared_block_ids=(cast.plan,)))
    second = await process.groups.create(ME, None, cast.group(1, 2, shared_block_ids=(cast.plan,)))
    await process.groups.delete(ME, None, first.id)
    assert cast.holders(cast.plan) == "12"
    await process.groups.delete(ME, None, second.id)
    assert cast.holders(cast.plan) == ""


async def test_shared_block_is_replaced_by_another_with_its_label(world: World, process: Process, cast: Cast) -> None:
    (other,) = world.blocks.held[cast.own_plan.id]
    group = await process.groups.create(ME, None, cast.group(0, 1, shared_block_ids=(cast.plan,)))
    await process.groups.update(ME, None, group.id, {"shared_block_ids": (other,)})
    assert (cast.holders(cast.plan), cast.holders(other)) == ("", "01")


async def test_taken_label_undoes_the_creation(world: World, process: Process, cast: Cast) -> None:
    draft = cast.group(0, 1, shared_block_ids=(cast.notes, cast.plan))
    refused = replace(draft, agent_ids=(*draft.agent_ids, cast.own_plan.id))
    with pytest.raises(AlreadyExists) as raised:
        await process.groups.create(ME, key(), refused)
    assert raised.value.reason == "BLOCK_LABEL_TAKEN"
    assert raised.value.metadata == {
        "label": "plan", "agent_id": cast.own_plan.id, "field": "group.shared_block_ids"
    }  # fmt: skip
    assert cast.holders(cast.plan) == cast.holders(cast.notes) == ""
    await no_group_is_left(process)
    # The key is free again, so that the client may correct itself.
    group = await process.groups.create(ME, key(fingerprint="corrected"), draft)
    assert cast.holders(cast.plan) == cast.holders(cast.notes) == "01"
    changes = {"agent_ids": (cast.agents[2].id, cast.own_plan.id)}
    with pytest.raises(AlreadyExists):
        await process.groups.update(ME, key("UpdateGroup"), group.id, changes)
    assert await process.groups.get(ME, group.id) == group
    assert cast.holders(cast.plan) == cast.holders(cast.notes) == "01"
    again = await process.groups.update(ME, key("UpdateGroup", fingerprint="n"), group.id, {"description": "New"})
    assert again.description == "New"


async def test_missing_resources_are_named_and_nothing_is_kept(world: World, process: Process, cast: Cast) -> None:
    gone, draft = new_id("agent"), cast.group(0, 1)
    for wrong, field, resource in (
        ({"agent_ids": (*draft.agent_ids, gone)}, "group.agent_ids", gone),
        ({"manager": ManagerConfig(ManagerType.DYNAMIC, gone)}, "group.manager_config.dynamic.manager_agent_id", gone),
        ({"shared_block_ids": (cast.plan, b := new_id("block"))}, "group.shared_block_ids", b),
    ):
        with pytest.raises(NotFound) as raised:
            await process.groups.create(ME, None, replace(draft, **wrong))
        assert raised.value.metadata == {"field": field, "resource_id": resource}
    with pytest.raises(NotFound):
        await process.groups.create(STRANGER, None, draft)
    assert cast.holders(cast.plan) == ""
    await no_group_is_left(process)


async def test_groups_belong_to_their_organization(process: Process, cast: Cast) -> None:
    group = await process.groups.create(ME, None, cast.group(0))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: process.groups.get(STRANGER, group.id),
        lambda: process.groups.update(STRANGER, None, group.id, {"description": "x"}),
        lambda: process.groups.messages(STRANGER, group.id, MessageQuery()),
        lambda: process.groups.reset(STRANGER, None, group.id),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            await call()
    await process.groups.delete(STRANGER, None, group.id)
    assert await process.groups.get(ME, group.id) == group
    assert await process.groups.count(STRANGER, GroupFilter()) == 0


async def test_repeat_returns_the_first_result(process: Process, cast: Cast) -> None:
    group = await process.groups.create(ME, key(), cast.group(0))
    assert await process.groups.create(ME, key(), cast.group(0)) == group
    update = key("UpdateGroup")
    assert (await process.groups.update(ME, update, group.id, {"description": "1"})).description == "1"
    await process.groups.update(ME, None, group.id, {"description": "2"})
    assert (await process.groups.update(ME, update, group.id, {"description": "1"})).description == "2"
    for _ in range(2):
        await process.groups.delete(ME, key("DeleteGroup"), group.id)
    await process.groups.delete(ME, None, group.id)
    assert (
        await process.groups.list(ME, GroupFilter(), GroupOrder.CREATED_AT, PageQuery(9, ascending=True))
    ).items == ()


async def test_update_with_a_stale_revision_is_refused(process: Process, cast: Cast) -> None:
    group = await process.groups.create(ME, None, cast.group(0, 1))
    assert group.revision == 1
    for _ in range(2):
        changes = {"shared_block_ids": (cast.plan,)}
        changed = await process.groups.update(ME, key("UpdateGroup"), group.id, changes, if_revision=1)
        assert (changed.shared_block_ids, changed.revision) == ((cast.plan,), 2)
    with pytest.raises(GroupRevisionMismatch) as refused:
        await process.groups.update(ME, None, group.id, {"shared_block_ids": (cast.notes,)}, if_revision=1)
    assert (refused.value.reason, refused.value.metadata) == (
        "GROUP_REVISION_MISMATCH",
        {"resource_id": group.id, "revision": "2"},
    )
    assert await process.groups.get(ME, group.id) == changed
    assert (cast.holders(cast.plan), cast.holders(cast.notes)) == ("01", "")


async def test_fields_of_the_manager_are_changed_one_by_one(process: Process, cast: Cast) -> None:
    group = await process.groups.create(ME, None, cast.group(0, manager=ManagerConfig(max_turns=2)))
    fields = (ManagerType.ROUND_ROBIN, {"max_turns": 7})
    changed = await process.groups.update(ME, None, group.id, {"manager_fields": fields})
    assert changed.manager == ManagerConfig(max_turns=7)
    with pytest.raises(InvalidArgument) as raised:
        await process.groups.update(ME, None, group.id, {"manager_fields": (ManagerType.DYNAMIC, {"max_turns": 7})})
    assert raised.value.field == "update_mask"


async def test_deleted_agents_leave_their_groups(world: World, process: Process, cast: Cast) -> None:
    zoe, ada, max_, _ = cast.agents
    manager = ManagerConfig(ManagerType.SUPERVISOR, max_.id)
    group = await process.groups.create(ME, None, cast.group(0, 1, manager=manager, shared_block_ids=(cast.plan,)))
    for agent in (zoe, ada, max_):
        await process.lifecycle.delete(ME, agent.id)
    left = await process.groups.get(ME, group.id)
    assert (left.agent_ids, left.manager) == ((), manager)
    # A group without members and manager can be described, refilled and deleted.
    await process.groups.update(ME, None, group.id, {"description": "Empty"})
    eve = cast.agents[3]
    with pytest.raises(NotFound) as missing:
        await process.groups.update(ME, None, group.id, {"manager": replace(manager, type=ManagerType.SLEEPTIME)})
    assert missing.value.field == "group.manager_config.sleeptime.manager_agent_id"
    with pytest.raises(InvalidArgument) as raised:
        await process.groups.update(ME, None, group.id, {"agent_ids": ()})
    assert raised.value.field == "group.agent_ids"
    refilled = await process.groups.update(ME, None, group.id, {"agent_ids": (eve.id,), "manager": ManagerConfig()})
    assert refilled.agent_ids == (eve.id,)
    assert cast.holders(cast.plan) == "3"
    await process.groups.delete(ME, None, group.id)
    assert cast.holders(cast.plan) == ""


async def test_agents_are_listed_with_their_groups(process: Process, cast: Cast) -> None:
    group = await process.groups.create(ME, None, cast.group(0, 1))
    found = await process.agents.group_ids(ME, cast.agents)
    assert found == {cast.agents[0].id: (group.id,), cast.agents[1].id: (group.id,)}


async def test_sleeptime_group_links_its_agents(world: World, process: Process, cast: Cast) -> None:
    zoe, _, _, eve = cast.agents
    world.blocks.give(eve.id, cast.notes)
    manager = ManagerConfig(ManagerType.SLEEPTIME, eve.id, frequency=3)
    others = [await world.agent(process, blocks=()) for _ in range(2)]
    draft = replace(cast.group(), agent_ids=(others[0].id,), manager=manager, shared_block_ids=(cast.plan,))
    group = await process.groups.create(ME, None, draft)
    assert (await process.agents.get(ME, eve.id)).enable_sleeptime
    held = world.blocks.held
    assert set(held[others[0].id]) == set(held[eve.id]) >= {cast.plan, cast.notes}
    # What one of them gets, all of them get.
    archive = await world.agent(process, blocks=(Block(label="archive", value="Empty."),))
    (block,) = world.blocks.held[archive.id]
    world.blocks.give(others[0].id, block)
    assert cast.holders(block) == "3"
    with pytest.raises(FailedPrecondition) as raised:
        await process.groups.create(ME, None, replace(draft, manager=replace(manager, manager_agent_id=zoe.id)))
    assert raised.value.field == "group.agent_ids"
    assert not (await process.agents.get(ME, zoe.id)).enable_sleeptime
    with pytest.raises(InvalidArgument) as refused:
        await process.groups.create(ME, None, cast.group(0, manager=manager))
    assert refused.value.field == "group.manager_config.sleeptime.manager_agent_id"
    await process.groups.update(ME, None, group.id, {"agent_ids": (others[1].id,)})
    assert set(world.blocks.held[others[1].id]) == set(world.blocks.held[eve.id])
    assert cast.plan not in world.blocks.held[others[0].id]
    await process.groups.delete(ME, None, group.id)
    assert cast.holders(cast.plan) == ""
    assert not (await process.agents.get(ME, eve.id)).enable_sleeptime
    world.blocks.give(others[1].id, cast.plan)
    assert cast.holders(cast.plan) == ""


async def test_new_manager_of_a_sleeptime_group_starts_after_its_last_message(
    world: World, process: Process, cast: Cast
) -> None:
    partner, zoe, ada = [await world.agent(process, blocks=()) for _ in range(3)]
    manager = ManagerConfig(ManagerType.SLEEPTIME, zoe.id)
    group = await process.groups.create(ME, None, replace(cast.group(manager=manager), agent_ids=(partner.id,)))
    manager = ManagerConfig(ManagerType.SLEEPTIME, ada.id, frequency=2)
    await process.groups.update(ME, None, group.id, {"manager": manager})
    enabled = [(await process.agents.get(ME, agent.id)).enable_sleeptime for agent in (zoe, ada)]
    assert enabled == [False, True]
    newest = max(message.sequence_id for message in world.recall.rows[ada.id])
    progress = await world.database.read(
        lambda conn: conn.execute(sa.select(groups.c.seen_sequence_id, groups.c.processed_sequence_id)).one()
    )
    assert tuple(progress) == (newest, newest)
    await process.groups.update(ME, None, group.id, {"manager": ManagerConfig()})
    assert not (await process.agents.get(ME, ada.id)).enable_sleeptime


async def test_manager_of_a_voice_group_is_a_voice_agent(world: World, process: Process, cast: Cast) -> None:
    partner = await world.agent(process, blocks=())
    voice = await world.agent(process, AgentType.VOICE_CONVO)
    draft = replace(cast.group(), agent_ids=(partner.id,))
    plain = await world.agent(process, blocks=())
    manager = ManagerConfig(ManagerType.VOICE_SLEEPTIME, plain.id)
    with pytest.raises(InvalidArgument) as raised:
        await process.groups.create(ME, None, replace(draft, manager=manager))
    assert raised.value.field == "group.manager_config.voice_sleeptime.manager_agent_id"
    group = await process.groups.create(ME, None, replace(draft, manager=replace(manager, type=ManagerType.SLEEPTIME)))
    with pytest.raises(InvalidArgument):
        await process.groups.update(ME, None, group.id, {"manager": manager})
    await process.groups.delete(ME, None, group.id)
    manager = ManagerConfig(ManagerType.VOICE_SLEEPTIME, voice.id, max_message_buffer_length=20)
    assert (await process.groups.create(ME, None, replace(draft, manager=manager))).manager == manager


async def test_count_of_turns_is_set_by_creations_and_updates(world: World, process: Process, cast: Cast) -> None:
    partner, first, second = [await world.agent(process, blocks=()) for _ in range(3)]
    manager = ManagerConfig(ManagerType.SLEEPTIME, first.id, frequency=3)
    draft = replace(cast.group(manager=manager), agent_ids=(partner.id,), turns_counter=-1)
    group = await process.groups.create(ME, None, draft)
    assert group.turns_counter == -1
    assert (await process.groups.update(ME, None, group.id, {"description": "x"})).turns_counter == -1
    assert (await process.groups.update(ME, None, group.id, {"turns_counter": 2})).turns_counter == 2
    other = {"manager_fields": (ManagerType.SLEEPTIME, {"manager_agent_id": second.id})}
    assert (await process.groups.update(ME, None, group.id, other)).turns_counter == 0
    other = {"manager_fields": (ManagerType.SLEEPTIME, {"manager_agent_id": first.id}), "turns_counter": 1}
    assert (await process.groups.update(ME, None, group.id, other)).turns_counter == 1
    with pytest.raises(InvalidArgument, match=r"group\.turns_counter"):
        await process.groups.update(ME, None, group.id, {"turns_counter": -2})
