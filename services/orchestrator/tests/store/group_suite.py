"""The suite of group stores."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.errors import InvalidArgument, NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import ConversationFilter
from mnemesh_orchestrator.model.group_changes import GroupChange, UnfinishedGroup
from mnemesh_orchestrator.model.groups import (
    Group,
    GroupFilter,
    GroupOrder,
    GroupState,
    ManagerConfig,
    ManagerType,
    SharedAttachment,
)
from mnemesh_orchestrator.store.base import AgentStore, ConversationStore, GroupStore
from mnemesh_types.provenance import Provenance

from .records import ALL, ORG, OTHER_ORG, an_agent, key, made

CREATE = "CreateGroup"


def a_group(clock: FrozenClock, *agents: Agent, **fields: Any) -> Group:
    fields.setdefault("organization_id", ORG)
    ids = tuple(agent.id for agent in agents)
    return Group(new_id("group"), created_at=clock.now(), updated_at=clock.now(), agent_ids=ids, **fields)


def managed_by(agent: Agent, type_: ManagerType = ManagerType.SLEEPTIME) -> ManagerConfig:
    return ManagerConfig(type_, agent.id)


def a_change(clock: FrozenClock, before: Group | None, after: Group | None, **fields: Any) -> GroupChange:
    known = after or before
    assert known is not None
    return GroupChange(new_id("group"), known.id, ORG, clock.now(), "user", before, after, **fields)


class GroupStoreSuite:
    """Subclass it with fixtures `groups`, `agents` and `threads` over one empty database on the `clock` fixture."""

    @pytest_asyncio.fixture
    async def trio(self, agents: AgentStore, clock: FrozenClock) -> list[Agent]:
        return [await made(agents, an_agent(clock, name)) for name in ("Zoe", "Ada", "Max")]

    async def test_group_is_returned_unchanged(self, groups: GroupStore, trio: list[Agent], clock: FrozenClock) -> None:
        manager, *members = trio
        group = a_group(
            clock,
            *members,
            description="Writers",
            manager=ManagerConfig(ManagerType.DYNAMIC, manager.id, max_turns=4, termination_token="END"),
            shared_block_ids=(block := new_id("block"),),
            attachments=(SharedAttachment(members[0].id, block),),
            hidden=True,
            metadata='{"k": 1}',
            provenance=Provenance("me", "me", project_id="p"),
        )
        assert await groups.create(None, group) == (group, True)
        assert await groups.get(ORG, group.id) == group
        with pytest.raises(NotFound):
            await groups.get(OTHER_ORG, group.id)

    async def test_members_keep_their_order_after_every_change(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        first, second, third = (agent.id for agent in trio)
        group = a_group(clock, *trio)
        await groups.create(None, group)
        for ids in ((third, first), (first, second, third), (second,), ()):
            changed = await groups.update(None, ORG, group.id, lambda it, ids=ids: replace(it, agent_ids=ids))
            assert changed.agent_ids == ids
            assert (await groups.get(ORG, group.id)).agent_ids == ids

    async def test_agents_of_a_group_exist_in_its_organization(
        self, groups: GroupStore, agents: AgentStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        foreign = await made(agents, an_agent(clock, organization_id=OTHER_ORG))
        await agents.begin_deletion(ORG, trio[2].id)
        for stranger in (foreign, an_agent(clock), trio[2]):
            with pytest.raises(NotFound) as refused:
                await groups.create(None, a_group(clock, trio[0], stranger))
            assert refused.value.metadata == {"field": "group.agent_ids", "resource_id": stranger.id}
            manager = managed_by(stranger, ManagerType.SUPERVISOR)
            with pytest.raises(NotFound) as refused:
                await groups.create(None, a_group(clock, trio[0], manager=manager))
            assert refused.value.field == "group.manager_config.supervisor.manager_agent_id"
        assert await groups.count(ORG, GroupFilter()) == 0
        group = a_group(clock, trio[0])
        await groups.create(None, group)
        with pytest.raises(NotFound):
            await groups.update(None, ORG, group.id, lambda it: replace(it, agent_ids=(foreign.id,)))
        assert await groups.get(ORG, group.id) == group

    async def test_agent_in_creation_joins(
        self, groups: GroupStore, agents: AgentStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        agent = an_agent(clock)
        await agents.begin_creation(None, agent, b"{}")
        group = a_group(clock, trio[0], manager=managed_by(agent))
        assert (await groups.create(None, group))[0] == group

    async def test_agent_manages_one_sleeptime_group(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        manager, member, other = trio
        group = a_group(clock, member, manager=managed_by(manager))
        await groups.create(None, group)
        voice = managed_by(manager, ManagerType.VOICE_SLEEPTIME)
        with pytest.raises(InvalidArgument) as refused:
            await groups.create(None, a_group(clock, member, manager=voice))
        assert refused.value.field == "group.manager_config.voice_sleeptime.manager_agent_id"
        await groups.create(None, a_group(clock, member, manager=managed_by(manager, ManagerType.DYNAMIC)))
        second = a_group(clock, member, manager=managed_by(other))
        await groups.create(None, second)
        with pytest.raises(InvalidArgument):
            await groups.update(None, ORG, second.id, lambda it: replace(it, manager=managed_by(manager)))
        await groups.remove(group.id)
        await groups.update(None, ORG, second.id, lambda it: replace(it, manager=managed_by(manager)))

    async def test_concurrent_creations_give_an_agent_one_sleeptime_group(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        manager, member, _ = trio
        created = await asyncio.gather(
            *(groups.create(None, a_group(clock, member, manager=managed_by(manager))) for _ in range(5)),
            return_exceptions=True,
        )
        assert sum(isinstance(result, InvalidArgument) for result in created) == 4
        assert len(await groups.of_manager(ORG, manager.id)) == 1

    async def test_deleted_member_leaves_and_a_deleted_manager_stays_named(
        self, groups: GroupStore, agents: AgentStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        manager, member, other = trio
        group = a_group(clock, member, other, manager=managed_by(manager, ManagerType.SUPERVISOR))
        await groups.create(None, group)
        await agents.begin_deletion(ORG, member.id)
        assert (await groups.get(ORG, group.id)).agent_ids == (other.id,)
        for agent in trio:
            await agents.begin_deletion(ORG, agent.id)
            await agents.remove(agent.id)
        assert await groups.get(ORG, group.id) == replace(group, agent_ids=())
        assert (await groups.list(ORG, GroupFilter(), GroupOrder.CREATED_AT, ALL)).items[0].agent_ids == ()

    async def test_queue_of_a_group_is_no_conversation_of_clients(
        self, groups: GroupStore, threads: ConversationStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        group = a_group(clock, *trio)
        await groups.create(None, group)
        with pytest.raises(NotFound):
            await threads.get(ORG, group.conversation_id)
        with pytest.raises(NotFound):
            await threads.update(None, ORG, group.conversation_id, lambda thread: thread)
        with pytest.raises(NotFound):
            await threads.begin_deletion(None, ORG, group.conversation_id)
        listed = await threads.list(ORG, ConversationFilter(), "created_at", ALL)
        assert {thread.agent_id for thread in listed.items} == {agent.id for agent in trio}
        assert len(listed.items) == len(trio)
        assert await threads.unfinished() == ()

    async def test_lists_are_filtered_ordered_and_paged(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        zoe, ada, max_ = trio
        first = a_group(clock, ada, zoe, provenance=Provenance(project_id="p", deployment_id="d"))
        clock.advance(1)
        second = a_group(clock, ada, manager=managed_by(zoe), provenance=Provenance(template_id="t"))
        clock.advance(1)
        third = a_group(clock, ada, max_, hidden=True, provenance=Provenance(base_template_id="b"))
        created = (first, second, third)
        for group in created:
            await groups.create(None, group)
        clock.advance(1)
        await groups.update(None, ORG, first.id, lambda it: replace(it, updated_at=clock.now()))
        names = dict(zip((group.id for group in created), "123", strict=True))

        async def listed(
            where: GroupFilter = GroupFilter(),  # noqa: B008 -- frozen
            order: GroupOrder = GroupOrder.CREATED_AT,
            **page: Any,
        ) -> str:
            query = PageQuery(**{"limit": 10, "ascending": True, **page})
            found = await groups.list(ORG, where, order, query)
            return "".join(names[group.id] for group in found.items)

        for where, expected in (
            (GroupFilter(), "123"),
            (GroupFilter(group_ids=(third.id, first.id)), "13"),
            (GroupFilter(manager_types=(ManagerType.SLEEPTIME,)), "2"),
            (GroupFilter(manager_types=(ManagerType.SLEEPTIME, ManagerType.ROUND_ROBIN)), "123"),
            (GroupFilter(agent_id=zoe.id), "12"),
            (GroupFilter(agent_id=max_.id), "3"),
            (GroupFilter(hidden=True), "3"),
            (GroupFilter(hidden=False), "12"),
            (GroupFilter(project_id="p"), "1"),
            (GroupFilter(deployment_id="d", hidden=True), ""),
            (GroupFilter(template_id="t"), "2"),
            (GroupFilter(base_template_id="b"), "3"),
        ):
            assert await listed(where) == expected
            assert await groups.count(ORG, where) == len(expected)
        assert await groups.count(OTHER_ORG, GroupFilter()) == 0
        assert await listed(ascending=False) == "321"
        assert await listed(order=GroupOrder.UPDATED_AT) == "231"
        assert await listed(after_id=first.id) == "23"
        assert await listed(before_id=third.id, ascending=False) == ""
        assert await listed(before_id=third.id, order=GroupOrder.UPDATED_AT) == "2"
        page = await groups.list(ORG, GroupFilter(), GroupOrder.CREATED_AT, PageQuery(2, ascending=True))
        assert page.items[0].agent_ids == (ada.id, zoe.id)
        assert await listed(limit=2, cursor=page.next_cursor) == "3"

    async def test_groups_of_agents_and_managers(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        zoe, ada, _ = trio
        first = a_group(clock, ada, zoe)
        clock.advance(1)
        second = a_group(clock, ada, manager=managed_by(zoe))
        for group in (first, second):
            await groups.create(None, group)
        found = await groups.of_agents(ORG, [agent.id for agent in trio])
        assert found == {zoe.id: (first.id, second.id), ada.id: (first.id, second.id)}
        assert await groups.of_agents(OTHER_ORG, [zoe.id]) == {}
        assert await groups.of_agents(ORG, []) == {}
        assert await groups.of_manager(ORG, zoe.id) == (second,)
        assert await groups.of_manager(ORG, zoe.id, (ManagerType.DYNAMIC,)) == ()
        assert await groups.of_manager(ORG, ada.id) == ()

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
        assert await groups.unfinished() == (UnfinishedGroup(group, GroupState.CREATING, change),)
        assert await groups.unfinished(new_id("group")) == ()
        assert await groups.finish(change)
        assert not await groups.finish(change), "a second process does nothing"
        assert await groups.get(ORG, group.id) == group
        assert await groups.unfinished() == ()

    async def test_undone_creation_is_gone_and_its_key_is_free(
        self, groups: GroupStore, trio: list[Agent], clock: FrozenClock
    ) -> None:
        change = a_change(clock, None, a_group(clock, *trio))
        await groups.begin(key(CREATE), change)
        assert await groups.begin_undo(change, key(CREATE))
        assert not await groups.finish(change)
        (unfinished,) = await groups.unfinished()
        assert unfinished.change == replace(change, is_undone=True)
        await groups.end_undo(change)
        assert await groups.unfinished() == ()
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
        assert await groups.unfinished() == ()

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
        (unfinished,) = await groups.unfinished()
        assert (unfinished.state, unfinished.change.detaches) == (GroupState.DELETING, (first, second))
        assert await groups.finish(unfinished.change)
        assert await groups.unfinished() == ()

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
        ((_, _, change),) = [(item.group, item.state, item.change) for item in await groups.unfinished()]
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
        ((deletion,),) = [[item.change for item in await groups.unfinished()]]
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

    async def test_removed_group_is_gone(self, groups: GroupStore, trio: list[Agent], clock: FrozenClock) -> None:
        group = a_group(clock, *trio)
        await groups.create(None, group)
        for _ in range(2):
            await groups.remove(group.id)
        with pytest.raises(NotFound):
            await groups.get(ORG, group.id)
        assert await groups.of_agents(ORG, [trio[0].id]) == {}
