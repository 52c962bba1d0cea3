"""The suite of group stores."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import ConversationFilter
from mnemesh_orchestrator.model.groups import GroupFilter, GroupOrder, ManagerConfig, ManagerType, SharedAttachment
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_types.provenance import Provenance

from .group_change_suite import GroupChangeSuite
from .records import ALL, ORG, OTHER_ORG, a_group, an_agent, made, managed_by


class GroupStoreSuite(GroupChangeSuite):
    """Subclass it with fixtures `groups`, `agents` and `threads` over one empty database on the `clock` fixture."""

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
        assert await threads.list_unfinished() == ()

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

    async def test_removed_group_is_gone(self, groups: GroupStore, trio: list[Agent], clock: FrozenClock) -> None:
        group = a_group(clock, *trio)
        await groups.create(None, group)
        for _ in range(2):
            await groups.remove(group.id)
        with pytest.raises(NotFound):
            await groups.get(ORG, group.id)
        assert await groups.of_agents(ORG, [trio[0].id]) == {}
