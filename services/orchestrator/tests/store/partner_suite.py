"""The suite of partner stores, and of the deletion of agents with partners."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from mnemesh_kit.errors import InvalidArgument, NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent, AgentState, AgentType
from mnemesh_orchestrator.model.creation import CREATED_FOR_AGENT, Deletion, DeletionStart, Partnership, PartnerStart
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_orchestrator.store.agents import AgentStore, PartnerStore
from mnemesh_orchestrator.store.groups import GroupStore

from .records import ORG, OTHER_ORG, an_agent, key, made

UPDATE = "UpdateAgent"


def on(agent: Agent) -> Agent:
    return replace(agent, enable_sleeptime=True)


def a_partner(clock: FrozenClock, agent: Agent) -> Agent:
    return an_agent(clock, f"{agent.name}-sleeptime", type=AgentType.SLEEPTIME, created_for_agent_id=agent.id)


def a_group(clock: FrozenClock, agent: Agent, *members: Agent) -> Group:
    ids = tuple(member.id for member in members)
    manager = ManagerConfig(ManagerType.SLEEPTIME, agent.id)
    return Group(new_id("group"), ORG, clock.now(), clock.now(), agent_ids=ids, manager=manager)


def create(clock: FrozenClock) -> Callable[[Agent, Group | None], tuple[Agent, bytes]]:
    return lambda agent, group: (a_partner(clock, agent), (group.id if group is not None else "none").encode())


async def paired(agents: AgentStore, clock: FrozenClock) -> tuple[Agent, Agent, Group]:
    """Stores an agent with its partner and their group."""
    agent = an_agent(clock)
    partner = a_partner(clock, agent)
    group = a_group(clock, agent, partner)
    await agents.begin_creation(None, on(agent), b"{}")
    assert await agents.activate(on(agent), Partnership(partner, group, 7))
    return await agents.get(ORG, agent.id), await agents.get(ORG, partner.id), group


class PartnerStoreSuite:
    """Subclass it with fixtures `partners`, `agents` and `groups` over one empty database on the `clock` fixture."""

    async def test_agent_becomes_active_with_its_partner_and_their_group(
        self, agents: AgentStore, groups: GroupStore, clock: FrozenClock
    ) -> None:
        agent = an_agent(clock)
        partner = a_partner(clock, agent)
        group = a_group(clock, agent, partner)
        await agents.begin_creation(None, agent, b"{}")
        for expected in (True, False):
            assert await agents.activate(agent, Partnership(partner, group, 7)) is expected
        assert (await agents.get(ORG, partner.id)).state is AgentState.ACTIVE
        assert await groups.of_manager(ORG, agent.id) == (group,)
        assert await agents.list_unfinished() == ()

    async def test_refused_group_leaves_neither_agent_nor_partner(
        self, agents: AgentStore, groups: GroupStore, clock: FrozenClock
    ) -> None:
        agent = an_agent(clock)
        await agents.begin_creation(None, agent, b"{}")
        partner = a_partner(clock, agent)
        stranger = a_group(clock, agent, partner, an_agent(clock))
        with pytest.raises(NotFound):
            await agents.activate(agent, Partnership(partner, stranger))
        assert [found.id for found, _ in await agents.list_unfinished()] == [agent.id]
        assert await groups.of_manager(ORG, agent.id) == ()

    async def test_partner_is_stored_once_for_each_request(
        self, partners: PartnerStore, agents: AgentStore, groups: GroupStore, clock: FrozenClock
    ) -> None:
        agent = await made(agents, an_agent(clock))
        first = await partners.begin(key(UPDATE), ORG, agent.id, on, create(clock))
        assert first.partner is not None
        assert (first.agent, first.creation, first.is_own) == (agent, b"none", True)
        assert await partners.begin(key(UPDATE), ORG, agent.id, on, create(clock)) == first
        other = await partners.begin(key(UPDATE, "r-2"), ORG, agent.id, on, create(clock))
        assert other == replace(first, is_own=False)
        with pytest.raises(RequestIdReused):
            await partners.begin(key(UPDATE, fingerprint="other"), ORG, agent.id, on, create(clock))
        group = a_group(clock, agent, first.partner)
        changed = await partners.activate(Partnership(first.partner, group), agent.id, on)
        assert changed is not None
        assert (changed.enable_sleeptime, changed.revision) == (True, 2)
        assert await partners.activate(Partnership(first.partner, group), agent.id, on) is None
        assert await groups.of_manager(ORG, agent.id) == (group,)
        assert await partners.begin(key(UPDATE), ORG, agent.id, on, create(clock)) == PartnerStart(changed)

        def rename(agent: Agent) -> Agent:
            return replace(agent, name="Renamed")

        later = await partners.begin(key(UPDATE, "r-2"), ORG, agent.id, rename, create(clock))
        assert (later.partner, later.agent.name) == (None, "Renamed")

    async def test_refused_change_stores_nothing(
        self, partners: PartnerStore, agents: AgentStore, groups: GroupStore, clock: FrozenClock
    ) -> None:
        def refuse(agent: Agent) -> Agent:
            raise InvalidArgument("No.", field="agent.name")

        agent = await made(agents, an_agent(clock))
        for wrong in (agent.id, new_id("agent")):
            with pytest.raises((InvalidArgument, NotFound)):
                await partners.begin(key(UPDATE), ORG, wrong, refuse, create(clock))
        with pytest.raises(NotFound):
            await partners.begin(None, OTHER_ORG, agent.id, on, create(clock))
        assert await agents.list_unfinished() == ()
        start = await partners.begin(key(UPDATE), ORG, agent.id, on, create(clock))
        assert start.partner is not None
        with pytest.raises(InvalidArgument):
            await partners.activate(Partnership(start.partner, a_group(clock, agent, start.partner)), agent.id, refuse)
        assert [found.state for found, _ in await agents.list_unfinished()] == [AgentState.CREATING]
        assert await groups.of_manager(ORG, agent.id) == ()

    async def test_partner_joins_a_group_without_members(
        self, partners: PartnerStore, agents: AgentStore, groups: GroupStore, clock: FrozenClock
    ) -> None:
        agent = await made(agents, an_agent(clock))
        own = a_group(clock, agent)
        await groups.create(None, own)
        start = await partners.begin(None, ORG, agent.id, on, create(clock))
        assert start.partner is not None
        assert start.creation == own.id.encode()
        assert await partners.activate(
            Partnership(start.partner, replace(own, agent_ids=(start.partner.id,))), agent.id, on
        )
        assert [group.agent_ids for group in await groups.of_manager(ORG, agent.id)] == [(start.partner.id,)]

    async def test_concurrent_requests_store_one_partner(
        self, partners: PartnerStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        agent = await made(agents, an_agent(clock))
        starts = await asyncio.gather(
            *(partners.begin(key(UPDATE, f"r-{n}"), ORG, agent.id, on, create(clock)) for n in range(4))
        )
        assert len({start.partner.id for start in starts if start.partner is not None}) == 1
        assert sorted(start.is_own for start in starts) == [False, False, False, True]

    async def test_deletion_marks_the_partners_and_ends_the_group(
        self, agents: AgentStore, groups: GroupStore, clock: FrozenClock
    ) -> None:
        agent, partner, group = await paired(agents, clock)
        expected = DeletionStart(
            ((partner.id, Deletion(together_with=(agent.id,))), (agent.id, Deletion(together_with=(partner.id,)))),
            (group.id,),
        )
        assert await agents.begin_deletion(ORG, agent.id, CREATED_FOR_AGENT) == expected
        assert await agents.begin_deletion(ORG, agent.id) == replace(expected, group_ids=())
        assert await groups.of_manager(ORG, agent.id) == ()
        assert [item.group.id for item in await groups.list_unfinished()] == [group.id]
        assert {found.state for found, _ in await agents.list_unfinished()} == {AgentState.DELETING}
        await agents.remove(partner.id)
        assert (await agents.begin_deletion(ORG, agent.id)).agents == expected.agents[1:]

    async def test_deletion_of_the_last_member_switches_sleeptime_off(
        self, agents: AgentStore, groups: GroupStore, clock: FrozenClock
    ) -> None:
        agent, partner, group = await paired(agents, clock)
        second = await made(agents, an_agent(clock, type=AgentType.SLEEPTIME))
        await groups.update(None, ORG, group.id, lambda group: replace(group, agent_ids=(partner.id, second.id)))
        assert await agents.begin_deletion(ORG, second.id) == DeletionStart(((second.id, Deletion()),))
        assert (await groups.get(ORG, group.id)).agent_ids == (partner.id,)
        assert await agents.get(ORG, agent.id) == agent
        assert (await agents.begin_deletion(ORG, partner.id)).group_ids == (group.id,)
        assert (await agents.get(ORG, agent.id)).enable_sleeptime is False
        assert await groups.of_manager(ORG, agent.id) == ()

    async def test_partner_in_creation_is_deleted_with_its_agent(
        self, partners: PartnerStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        agent = await made(agents, an_agent(clock))
        start = await partners.begin(None, ORG, agent.id, on, create(clock))
        assert start.partner is not None
        assert (await agents.begin_deletion(ORG, start.partner.id)).agents == ()
        marked = await agents.begin_deletion(ORG, agent.id)
        assert [agent_id for agent_id, _ in marked.agents] == [start.partner.id, agent.id]
        group = a_group(clock, agent, start.partner)
        assert await partners.activate(Partnership(start.partner, group), agent.id, on) is None
