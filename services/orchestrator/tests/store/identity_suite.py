"""The suite of identity stores."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import IdentifierKeyTaken
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AttachedTool, LinkKind
from mnemesh_orchestrator.model.identities import Identity, IdentityFilter, IdentityProperty, IdentityType
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.identities import IdentityStore
from mnemesh_types.provenance import Provenance

from .records import ALL, ORG, OTHER_ORG, an_agent, key, made


def an_identity(clock: FrozenClock, identifier_key: str = "ada", **fields: Any) -> Identity:
    organization = fields.pop("organization_id", ORG)
    created = {"name": "Ada", "type": IdentityType.USER, "created_at": clock.now(), "updated_at": clock.now(), **fields}
    return Identity(new_id("identity"), organization, identifier_key, **created)


class IdentityStoreSuite:
    """Subclass it with fixtures `agents` and `identities` over one empty database on the `clock` fixture."""

    @pytest_asyncio.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def test_identity_is_returned_unchanged(self, identities: IdentityStore, clock: FrozenClock) -> None:
        properties = (
            IdentityProperty("city", "text", "London"),
            IdentityProperty("adult", "boolean", True),
            IdentityProperty("age", "integer", 36),
            IdentityProperty("weight", "number", 1.0),
            IdentityProperty("tags", "json", "[1]"),
        )
        origin = Provenance(project_id="p")
        identity = an_identity(clock, properties=properties, provenance=origin)
        assert await identities.create(None, identity, ()) == (identity, True)
        found = await identities.get(ORG, identity.id)
        assert found == identity
        assert [type(item.value) for item in found.properties] == [str, bool, int, float, str]
        with pytest.raises(NotFound):
            await identities.get(OTHER_ORG, identity.id)

    async def test_key_is_unique_within_organization_and_project(
        self, identities: IdentityStore, clock: FrozenClock
    ) -> None:
        first = an_identity(clock)
        await identities.create(None, first, ())
        with pytest.raises(IdentifierKeyTaken):
            await identities.create(None, an_identity(clock), ())
        await identities.create(None, an_identity(clock, provenance=Provenance(project_id="p")), ())
        await identities.create(None, an_identity(clock, organization_id=OTHER_ORG), ())
        other = an_identity(clock, "grace")
        await identities.create(None, other, ())
        with pytest.raises(IdentifierKeyTaken):
            await identities.update(None, ORG, other.id, lambda it: replace(it, identifier_key="ada"))
        assert await identities.get(ORG, other.id) == other

    async def test_merge_keeps_the_id_and_attached_resources(
        self, agents: AgentStore, identities: IdentityStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = an_identity(clock, properties=(IdentityProperty("a", "text", "b"),))
        await identities.create(None, first, [agent.id])
        second = await made(agents, an_agent(clock))
        clock.advance(1)
        again = an_identity(clock, name="Ada Lovelace")
        merged, is_new = await identities.create(None, again, [second.id], merges=True)
        assert not is_new
        assert merged == replace(again, id=first.id, created_at=first.created_at)
        assert set((await identities.agents(ORG, first.id, ALL)).items) == {agent.id, second.id}

    async def test_attachments_are_visible_from_both_sides(
        self, agents: AgentStore, identities: IdentityStore, agent: Agent, clock: FrozenClock
    ) -> None:
        identity, other = an_identity(clock), an_identity(clock, "grace")
        await identities.create(None, identity, [agent.id])
        await identities.create(None, other, ())
        await identities.attach(None, ORG, identity.id, agent.id)
        assert (await agents.get(ORG, agent.id)).identity_ids == (identity.id,)
        where = AgentFilter(links=((LinkKind.IDENTITY, identity.id),))
        assert [found.id for found in (await agents.list(ORG, where, "created_at", ALL)).items] == [agent.id]
        assert await agents.count(ORG, AgentFilter(identifier_key="ada")) == 1
        assert await agents.count(ORG, AgentFilter(identifier_key="grace")) == 0
        assert await identities.count(ORG, IdentityFilter(agent_id=agent.id)) == 1
        await identities.detach(None, ORG, identity.id, agent.id)
        assert (await agents.get(ORG, agent.id)).identity_ids == ()
        with pytest.raises(NotFound):
            await identities.detach(None, ORG, identity.id, agent.id)
        await agents.update(None, ORG, agent.id, lambda it: replace(it, identity_ids=(other.id,)))
        assert (await identities.agents(ORG, other.id, ALL)).items == (agent.id,)
        updated = await identities.update(None, ORG, identity.id, lambda it: replace(it, name="A."), [agent.id])
        assert updated.name == "A."
        assert (await agents.get(ORG, agent.id)).identity_ids == (other.id, identity.id)

    async def test_missing_resource_changes_nothing(
        self, agents: AgentStore, identities: IdentityStore, agent: Agent, clock: FrozenClock
    ) -> None:
        identity = an_identity(clock)
        with pytest.raises(NotFound):
            await identities.create(None, identity, [agent.id, new_id("agent")])
        assert await identities.count(ORG, IdentityFilter()) == 0
        assert (await agents.get(ORG, agent.id)).identity_ids == ()
        foreign = an_identity(clock, organization_id=OTHER_ORG)
        await identities.create(None, foreign, ())
        with pytest.raises(NotFound) as refused:
            await agents.update(None, ORG, agent.id, lambda it: replace(it, identity_ids=(foreign.id,)))
        assert refused.value.field == "agent.identity_ids"
        with pytest.raises(NotFound):
            await identities.attach(None, OTHER_ORG, foreign.id, agent.id)

    async def test_deleted_identity_is_detached(
        self, agents: AgentStore, identities: IdentityStore, agent: Agent, clock: FrozenClock
    ) -> None:
        identity = an_identity(clock)
        await identities.create(None, identity, [agent.id])
        await identities.delete(None, OTHER_ORG, identity.id)
        await identities.delete(None, ORG, identity.id)
        await identities.delete(None, ORG, identity.id)
        assert (await agents.get(ORG, agent.id)).identity_ids == ()
        with pytest.raises(NotFound):
            await identities.get(ORG, identity.id)

    async def test_lists_are_filtered_and_ordered(self, identities: IdentityStore, clock: FrozenClock) -> None:
        for name, kind in (("Grace", IdentityType.USER), ("Ada", IdentityType.USER), ("Acme", IdentityType.ORG)):
            clock.advance(1)
            await identities.create(None, an_identity(clock, name.lower(), name=name, type=kind), ())
        for where, names in (
            (IdentityFilter(), "Acme Ada Grace"),
            (IdentityFilter(types=(IdentityType.USER,)), "Ada Grace"),
            (IdentityFilter(name_search="AC"), "Acme Grace"),
            (IdentityFilter(name="Ada"), "Ada"),
            (IdentityFilter(identifier_key="grace"), "Grace"),
            (IdentityFilter(project_id="p"), ""),
            (IdentityFilter(identity_ids=()), ""),
        ):
            page = await identities.list(ORG, where, "name", ALL)
            assert " ".join(found.name for found in page.items) == names
            assert await identities.count(ORG, where) == len(page.items)
        newest = await identities.list(ORG, IdentityFilter(), "created_at", ALL)
        assert [found.name for found in newest.items] == ["Grace", "Ada", "Acme"]

    async def test_effects_take_place_once_for_each_request(
        self, agents: AgentStore, identities: IdentityStore, agent: Agent, clock: FrozenClock
    ) -> None:
        identity = an_identity(clock)
        create, detach = key("CreateIdentity"), key("DetachIdentity")
        assert await identities.create(create, identity, [agent.id]) == (identity, True)
        assert await identities.create(create, an_identity(clock), [agent.id]) == (identity, True)
        with pytest.raises(RequestIdReused):
            await identities.create(key("CreateIdentity", fingerprint="other"), identity, ())
        for _ in range(2):
            await identities.detach(detach, ORG, identity.id, agent.id)
        noted = key("DetachIdentity", "r-2")
        assert not await identities.is_recorded(noted)
        await identities.record(noted)
        assert await identities.is_recorded(noted)
        assert not await identities.is_recorded(None)

    async def test_concurrent_upserts_of_a_key_create_one_identity(
        self, identities: IdentityStore, clock: FrozenClock
    ) -> None:
        made_so = await asyncio.gather(
            *(identities.create(None, an_identity(clock, name=f"{n}"), (), merges=True) for n in range(8))
        )
        assert len({identity.id for identity, _ in made_so}) == 1
        assert [is_new for _, is_new in made_so].count(True) == 1

    async def test_agents_are_filtered_by_tool_and_provenance(self, agents: AgentStore, clock: FrozenClock) -> None:
        tool_id = new_id("tool")
        agent = await made(
            agents,
            an_agent(clock, tools=(AttachedTool("probe", tool_id),), provenance=Provenance("me", project_id="p")),
        )
        await made(agents, an_agent(clock, name="another"))
        for link, expected in (
            ((LinkKind.TOOL, tool_id), [agent.id]),
            ((LinkKind.PROJECT, "p"), [agent.id]),
            ((LinkKind.CREATED_BY, "me"), [agent.id]),
            ((LinkKind.TEMPLATE, "p"), []),
        ):
            found = await agents.list(ORG, AgentFilter(links=(link,)), "created_at", ALL)
            assert [item.id for item in found.items] == expected
        await agents.update(None, ORG, agent.id, lambda it: replace(it, tools=()))
        assert await agents.count(ORG, AgentFilter(links=((LinkKind.TOOL, tool_id),))) == 0
