"""The suite of changes of groups in the store, which take effect when they are finished."""

from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.groups import (
    Group,
    GroupChange,
    GroupFilter,
    GroupOrder,
    GroupState,
    SharedAttachment,
    UnfinishedGroup,
)
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.groups import GroupStore

from .records import ALL, ORG, OTHER_ORG, a_group, an_agent, key, made, managed_by

CREATE = "CreateGroup"


def a_change(clock: FrozenClock, before: Group | None, after: Group | None, **fields: Any) -> GroupChange:
    known = after or before
    assert known is not None
    return GroupChange(new_id("group"), known.id, ORG, clock.now(), "user", before, after, **fields)


class GroupChangeSuite:
    """Subclass it with fixtures `groups` and `agents` over one empty database on the `clock` fixture."""

    @pytest_asyncio.fixture
    async def trio(self, agents: AgentStore, clock: FrozenClock) -> list[Agent]:
        return [await made(agents, an_agent(clock, name)) for name in ("Zoe", "Ada", "Max")]

    async def test_effects_take_place_once_for_each_request(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        group = a_group(clock, *trio)
        assert await groups.create(key(CREATE), group) == (group, True)
        assert await groups.create(key(CREATE), a_group(clock, *trio)) == (group, False)
        with pytest.raises(RequestIdReused):
            await groups.create(key(CREATE, fingerprint="other"), group)
        change = key("UpdateGroup")
        await groups.update(change, ORG, group.id, lambda it: replace(it, description="1"))
        assert (await groups.update(change, ORG, group.id, lambda it: replace(it, description="2"))).description == "1"

    async def test_creation_is_invisible_until_it_is_finished(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        group = a_group(clock, *trio)
        change = a_change(clock, None, group)
        assert await groups.begin(key(CREATE), change) == (group.id, False)
        assert await groups.begin(key(CREATE), a_change(clock, None, a_group(clock, *trio))) == (group.id, True)
        with pytest.raises(NotFound):
            await groups.get(ORG, group.id)
        with pytest.raises(NotFound):
            await groups.begin(None, a_change(clock, group, None))
        assert await groups.count(ORG, GroupFilter()) == 0
        assert await groups.of_agents(ORG, [trio[0].id]) == {}
        assert (await groups.list(ORG, GroupFilter(), GroupOrder.CREATED_AT, ALL)).items == ()
        assert await groups.list_unfinished() == (UnfinishedGroup(group, GroupState.CREATING, change),)
        assert await groups.list_unfinished(new_id("group")) == ()
        assert await groups.finish(change)
        assert not await groups.finish(change), "a second process does nothing"
        assert await groups.get(ORG, group.id) == group
        assert await groups.list_unfinished() == ()

    async def test_undone_creation_is_gone_and_its_key_is_free(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        change = a_change(clock, None, a_group(clock, *trio))
        await groups.begin(key(CREATE), change)
        assert await groups.begin_undo(change, key(CREATE))
        assert not await groups.finish(change)
        (unfinished,) = await groups.list_unfinished()
        assert unfinished.change == replace(change, is_undone=True)
        await groups.end_undo(change)
        assert await groups.list_unfinished() == ()
        assert not await groups.begin_undo(change, None)
        again = a_change(clock, None, a_group(clock, *trio))
        assert await groups.begin(key(CREATE, fingerprint="other"), again) == (again.group_id, False)

    async def test_update_shows_the_group_as_before_until_it_is_finished(
        self, groups: GroupStore, agents: AgentStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        zoe, ada, max_ = trio
        group = a_group(clock, zoe, ada)
        await groups.create(None, group)
        pair = SharedAttachment(max_.id, new_id("block"))
        after = replace(group, agent_ids=(max_.id, zoe.id), description="New", attachments=(pair,))
        change = a_change(clock, group, after, attaches=(pair,))
        await groups.begin(None, change)
        assert await groups.get(ORG, group.id) == group
        with pytest.raises(GroupChanged):
            await groups.begin(None, a_change(clock, group, replace(group, description="Other")))
        with pytest.raises(GroupChanged):
            await groups.update(None, ORG, group.id, lambda it: replace(it, description="Other"))
        await agents.begin_deletion(ORG, zoe.id)
        assert await groups.finish(change)
        assert await groups.get(ORG, group.id) == replace(after, agent_ids=(max_.id,), revision=2)

    async def test_undone_update_leaves_the_group_as_before(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        group = a_group(clock, trio[0])
        await groups.create(None, group)
        pair = SharedAttachment(trio[1].id, new_id("block"))
        change = a_change(clock, group, replace(group, agent_ids=(trio[1].id,)), attaches=(pair,))
        await groups.begin(key("UpdateGroup"), change)
        await groups.begin_undo(change, key("UpdateGroup"))
        await groups.end_undo(change)
        assert await groups.get(ORG, group.id) == group
        assert await groups.list_unfinished() == ()

    async def test_update_of_an_outdated_group_is_refused(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        group = a_group(clock, trio[0])
        await groups.create(None, group)
        await groups.begin(None, a_change(clock, group, replace(group, description="1")))
        assert (await groups.get(ORG, group.id)).description == "1", "without effects elsewhere it is complete"
        with pytest.raises(GroupChanged):
            await groups.begin(None, a_change(clock, group, replace(group, description="2")))

    async def test_deletion_replaces_an_update_and_ends_its_attachments(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        first, second = (SharedAttachment(agent.id, new_id("block")) for agent in trio[:2])
        group = a_group(clock, trio[0], attachments=(first,))
        await groups.create(None, group)
        after = replace(group, agent_ids=(trio[0].id, trio[1].id), attachments=(first, second))
        update = a_change(clock, group, after, attaches=(second,))
        await groups.begin(None, update)
        deletion = replace(a_change(clock, group, None), before=None)
        await groups.begin(None, deletion)
        assert not await groups.finish(update)
        with pytest.raises(NotFound):
            await groups.get(ORG, group.id)
        (unfinished,) = await groups.list_unfinished()
        assert (unfinished.state, unfinished.change.detaches) == (GroupState.DELETING, (first, second))
        assert await groups.finish(unfinished.change)
        assert await groups.list_unfinished() == ()

    async def test_attachment_that_another_group_shares_is_taken_over(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        block, other = new_id("block"), new_id("block")
        shared, own = SharedAttachment(trio[0].id, block), SharedAttachment(trio[0].id, other)
        first = a_group(clock, trio[0], shared_block_ids=(block, other), attachments=(shared, own))
        second = a_group(clock, trio[0], shared_block_ids=(block,))
        for group in (first, second):
            await groups.create(None, group)
        await groups.begin(None, a_change(clock, first, None))
        ((_, _, change),) = [(item.group, item.state, item.change) for item in await groups.list_unfinished()]
        assert change.detaches == (own,)
        assert (await groups.get(ORG, second.id)).attachments == (shared,)

    async def test_manager_of_a_sleeptime_group_is_marked(
        self, groups: GroupStore, agents: AgentStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        zoe, ada, max_ = trio

        async def enabled() -> list[bool]:
            return [bool((await agents.get(ORG, agent.id)).enable_sleeptime) for agent in (zoe, ada)]

        group = a_group(clock, max_, manager=managed_by(zoe))
        change = a_change(clock, None, group, start_sequence_id=7)
        await groups.begin(None, change)
        assert await enabled() == [False, False]
        await groups.finish(change)
        assert await enabled() == [True, False]
        await groups.begin(None, a_change(clock, group, after := replace(group, manager=managed_by(ada))))
        assert await enabled() == [False, True]
        await groups.begin(None, a_change(clock, after, None))
        ((deletion,),) = [[item.change for item in await groups.list_unfinished()]]
        await groups.finish(deletion)
        assert await enabled() == [False, False]

    async def test_reset_counts_from_zero_once(self, groups: GroupStore, trio: list[Agent], clock: FrozenClock) -> None:
        group = a_group(clock, trio[1], manager=managed_by(trio[0]))
        await groups.create(None, group, start_sequence_id=5)
        for newest in (9, 4):
            assert (await groups.reset(key("Reset", f"r-{newest}"), ORG, group.id, newest)).turns_counter == 0
        with pytest.raises(NotFound):
            await groups.reset(None, OTHER_ORG, group.id, 1)

    async def test_count_of_turns_is_set_only_by_changes_that_name_it(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        group = a_group(clock, trio[1], manager=managed_by(trio[0]), turns_counter=-1)
        assert (await groups.create(None, group, start_sequence_id=5))[0].turns_counter == -1
        assert (await groups.reset(None, ORG, group.id, 9, keep_turns_counter=True)).turns_counter == -1
        set_to = replace(a_change(clock, group, replace(group, description="A")), turns_counter=4)
        await groups.begin(None, set_to)
        stale = replace(await groups.get(ORG, group.id), turns_counter=0)
        await groups.begin(None, a_change(clock, stale, replace(stale, description="B")))
        assert ((found := await groups.get(ORG, group.id)).turns_counter, found.description) == (4, "B")
