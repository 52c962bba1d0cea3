"""The suite of agent stores."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from mnemesh_kit.errors import MnemeshError, NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentState, AgentType, AttachedTool, Correction
from mnemesh_orchestrator.model.creation import Deletion, DeletionStart, ErasureScope
from mnemesh_orchestrator.model.events import RunEnd
from mnemesh_orchestrator.model.rules import Conditional, ConditionalOutcome, ExitLoop
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_types.agents import ModelSettings
from mnemesh_types.usage import Usage

from .records import ALL, ORG, OTHER_ORG, a_run, an_agent, an_end, key, made, ran


class AgentStoreSuite:
    """Subclass it with fixtures `agents`, `runs` and `leases` that return empty stores on `clock`."""

    async def test_agent_in_creation_is_not_found(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = an_agent(clock, tags=("t",))
        assert await agents.begin_creation(None, agent, b"draft") == (agent.id, False)
        with pytest.raises(NotFound):
            await agents.get(ORG, agent.id)
        assert await agents.count(ORG, AgentFilter()) == 0
        assert (await agents.list(ORG, AgentFilter(), "created_at", ALL)).items == ()
        assert (await agents.tags(ORG, ALL, None)).items == ()
        assert not (await agents.begin_deletion(ORG, agent.id)).agents
        assert await agents.creation(ORG, agent.id) == (agent, b"draft")
        assert await agents.creation(OTHER_ORG, agent.id) is None
        assert await agents.list_unfinished() == ((agent, b"draft"),)

    async def test_active_agent_is_returned_unchanged(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = an_agent(
            clock,
            description="",
            model_settings=ModelSettings(temperature=0.0, context_window=8_000),
            tools=(AttachedTool("send_message"), AttachedTool("probe", new_id("tool"), True)),
            tool_rules=(
                ExitLoop("send_message"),
                Conditional("probe", (ConditionalOutcome(True, "a"), ConditionalOutcome(1, "b"))),
            ),
            tags=("b", "a"),
            metadata='{"k": 1}',
        )
        await agents.begin_creation(None, agent, b"draft")
        complete = replace(agent, name="Complete")
        assert await agents.activate(complete)
        assert await agents.get(ORG, agent.id) == replace(complete, state=AgentState.ACTIVE)
        assert await agents.creation(ORG, agent.id) is None
        assert await agents.list_unfinished() == ()
        with pytest.raises(NotFound):
            await agents.get(OTHER_ORG, agent.id)

    async def test_only_an_agent_in_creation_becomes_active(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = await made(agents, an_agent(clock))
        await agents.update(None, ORG, agent.id, lambda agent: replace(agent, name="Changed"))
        assert not await agents.activate(agent)
        assert (await agents.get(ORG, agent.id)).name == "Changed"
        assert (await agents.begin_deletion(ORG, agent.id)).agents
        assert not await agents.activate(agent)
        with pytest.raises(NotFound):
            await agents.get(ORG, agent.id)

    async def test_creation_begins_once_for_each_request(self, agents: AgentStore, clock: FrozenClock) -> None:
        first, second = an_agent(clock), an_agent(clock)
        assert await agents.begin_creation(key(), first, b"1") == (first.id, False)
        assert await agents.begin_creation(key(), second, b"2") == (first.id, True)
        with pytest.raises(RequestIdReused):
            await agents.begin_creation(key(fingerprint="other"), second, b"2")
        elsewhere = replace(second, organization_id=OTHER_ORG)
        assert await agents.begin_creation(key(org=OTHER_ORG), elsewhere, b"2") == (second.id, False)
        assert len(await agents.list_unfinished()) == 2

    async def test_concurrent_creations_with_one_request_id_create_one_agent(
        self, agents: AgentStore, clock: FrozenClock
    ) -> None:
        candidates = [an_agent(clock) for _ in range(8)]
        begun = await asyncio.gather(*(agents.begin_creation(key(), agent, b"") for agent in candidates))
        assert len({agent_id for agent_id, _ in begun}) == 1
        assert sorted(replayed for _, replayed in begun) == [False] + [True] * 7
        assert len(await agents.list_unfinished()) == 1

    async def test_abandoned_agent_is_deleted_and_its_request_id_released(
        self, agents: AgentStore, clock: FrozenClock
    ) -> None:
        first, second = an_agent(clock), an_agent(clock)
        await agents.begin_creation(key(), first, b"")
        undo = Deletion(partner_id=new_id("agent"))
        assert await agents.abandon(first.id, key(), undo)
        assert not await agents.abandon(first.id, key(), undo)
        assert [(agent.id, agent.state, draft) for agent, draft in await agents.list_unfinished()] == [
            (first.id, AgentState.DELETING, msgspec.json.encode(undo))
        ]
        assert await agents.begin_creation(key(), second, b"") == (second.id, False)
        await agents.remove(first.id)
        assert [agent.id for agent, _ in await agents.list_unfinished()] == [second.id]

    async def test_active_agent_cannot_be_abandoned(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = await made(agents, an_agent(clock))
        assert not await agents.abandon(agent.id, None, Deletion())
        assert (await agents.get(ORG, agent.id)).id == agent.id

    async def test_update_takes_effect_once_for_each_request(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = await made(agents, an_agent(clock, tags=("old",)))

        def longer(agent: Agent) -> Agent:
            return replace(agent, name=agent.name + "!", tags=("new",))

        for _ in range(2):
            changed = await agents.update(key("UpdateAgent"), ORG, agent.id, longer)
            assert changed.name == "Ada's!"
        assert (await agents.tags(ORG, ALL, None)).items == ("new",)
        with pytest.raises(RequestIdReused):
            await agents.update(key("UpdateAgent", fingerprint="other"), ORG, agent.id, longer)
        with pytest.raises(NotFound):
            await agents.update(None, OTHER_ORG, agent.id, longer)

    async def test_failed_update_changes_nothing(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = await made(agents, an_agent(clock))

        def refuse(_: Agent) -> Agent:
            raise MnemeshError("no")

        with pytest.raises(MnemeshError):
            await agents.update(key("UpdateAgent"), ORG, agent.id, refuse)
        assert (await agents.update(key("UpdateAgent"), ORG, agent.id, lambda agent: agent)) == agent

    async def test_concurrent_updates_are_all_applied(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = await made(agents, an_agent(clock))

        def attach(name: str) -> Any:
            return lambda agent: replace(agent, tools=(*agent.tools, AttachedTool(name)))

        names = {f"tool_{number}" for number in range(10)}
        await asyncio.gather(*(agents.update(None, ORG, agent.id, attach(name)) for name in names))
        assert {tool.name for tool in (await agents.get(ORG, agent.id)).tools} == names

    async def test_lists_apply_filters(self, agents: AgentStore, clock: FrozenClock) -> None:
        ada = await made(agents, an_agent(clock, "Ada", tags=("x", "y")))
        bob = await made(agents, an_agent(clock, "bob_100%", tags=("x",), hidden=True, type=AgentType.MEMGPT_V2))
        await made(agents, an_agent(clock, "Ada", organization_id=OTHER_ORG, tags=("x", "z")))
        wanted = {
            AgentFilter(): {ada.id, bob.id},
            AgentFilter(agent_ids=(ada.id, new_id("agent"))): {ada.id},
            AgentFilter(name="Ada"): {ada.id},
            AgentFilter(name="ada"): set(),
            AgentFilter(text_search="AD"): {ada.id},
            AgentFilter(text_search="0%"): {bob.id},
            AgentFilter(text_search="b_b"): set(),
            AgentFilter(tags_any=("x", "q")): {ada.id, bob.id},
            AgentFilter(tags_any=("z",)): set(),
            AgentFilter(tags_all=("x", "y")): {ada.id},
            AgentFilter(types=(AgentType.MEMGPT_V2, AgentType.REACT)): {bob.id},
            AgentFilter(hidden=False): {ada.id},
            AgentFilter(last_stop_reason="end_turn"): set(),
            AgentFilter(tags_any=("x",), name="Ada", hidden=False): {ada.id},
        }
        for where, ids in wanted.items():
            assert {agent.id for agent in (await agents.list(ORG, where, "created_at", ALL)).items} == ids, where
            assert await agents.count(ORG, where) == len(ids), where

    @pytest.mark.parametrize("ascending", [True, False])
    async def test_pages_by_creation_time_cover_each_agent_once(
        self, agents: AgentStore, clock: FrozenClock, *, ascending: bool
    ) -> None:
        ids = []
        for number in range(7):
            clock.advance(number % 2)
            ids.append((await made(agents, an_agent(clock))).id)
        seen: list[str] = []
        query = PageQuery(3, ascending=ascending)
        while True:
            page = await agents.list(ORG, AgentFilter(), "created_at", query)
            seen += [agent.id for agent in page.items]
            if page.next_cursor is None:
                break
            query = replace(query, cursor=page.next_cursor)
        assert len(seen) == 7
        assert set(seen) == set(ids)
        times = {agent_id: (await agents.get(ORG, agent_id)).created_at for agent_id in ids}
        ordered = sorted(ids, key=lambda agent_id: (times[agent_id], agent_id), reverse=not ascending)
        assert seen == ordered

    async def test_list_is_bounded_by_after_id_and_before_id(self, agents: AgentStore, clock: FrozenClock) -> None:
        ids = []
        for _ in range(5):
            clock.advance(1)
            ids.append((await made(agents, an_agent(clock))).id)

        async def page(**given: Any) -> list[str]:
            found = await agents.list(ORG, AgentFilter(), "created_at", PageQuery(10, **{"ascending": True, **given}))
            return [agent.id for agent in found.items]

        assert await page(after_id=ids[2]) == ids[3:]
        assert await page(before_id=ids[2]) == ids[:2]
        assert await page(after_id=ids[3], ascending=False) == ids[2::-1]
        assert await page(after_id=ids[0], before_id=ids[4]) == ids[1:4]
        with pytest.raises(NotFound):
            await page(after_id=new_id("agent"))

    @pytest.mark.parametrize("ascending", [True, False])
    async def test_agents_without_runs_are_last(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock, *, ascending: bool
    ) -> None:
        idle, early, late = [await made(agents, an_agent(clock)) for _ in range(3)]
        for agent in (early, late):
            clock.advance(1)
            await ran(runs, agent, clock)
        page = await agents.list(ORG, AgentFilter(), "last_run_completed_at", PageQuery(2, ascending=ascending))
        rest = await agents.list(
            ORG, AgentFilter(), "last_run_completed_at", PageQuery(2, ascending=ascending, cursor=page.next_cursor)
        )
        expected = [early.id, late.id] if ascending else [late.id, early.id]
        assert [agent.id for agent in (*page.items, *rest.items)] == [*expected, idle.id]
        assert page.items[0].last_stop_reason == "end_turn"
        assert page.items[0].last_run_ms == 5

    async def test_estimate_corrections_of_a_run_are_stored_with_its_agent(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock
    ) -> None:
        agent, other = [await made(agents, an_agent(clock)) for _ in range(2)]
        learnt = (Correction("scripted/one", 1.25, -0.2, 3), Correction("scripted/two", 0.9, 0.1, 1))
        first = await runs.start(None, a_run(agent, clock), "instance-1", reject_busy=False)
        assert first.claim is not None
        assert first.claim.agent.corrections == ()
        await runs.finish(first.claim.lease, RunEnd(an_end(first.run, clock), corrections=learnt), ())
        assert (await agents.get(ORG, agent.id)).corrections == learnt
        second = await runs.start(None, a_run(agent, clock), "instance-1", reject_busy=False)
        assert second.claim is not None
        assert second.claim.agent.corrections == learnt
        await runs.finish(second.claim.lease, RunEnd(an_end(second.run, clock)), ())
        assert (await agents.get(ORG, agent.id)).corrections == learnt, "a run that taught nothing changes nothing"
        renamed = await agents.update(None, ORG, agent.id, lambda old: replace(old, name="Grace's"))
        assert renamed.corrections == (await agents.get(ORG, agent.id)).corrections == learnt
        assert (await agents.get(ORG, other.id)).corrections == ()

    async def test_cost_of_an_agent_is_the_sum_of_its_ended_runs(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock
    ) -> None:
        agent, other = [await made(agents, an_agent(clock)) for _ in range(2)]
        assert await agents.cost(ORG, agent.id) is None
        for owner, cost in ((agent, None), (agent, 5), (agent, 2**40), (other, 7)):
            claim = (await runs.start(None, a_run(owner, clock), "me", reject_busy=False)).claim
            assert claim is not None
            await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock, usage=Usage(cost_nano_usd=cost))), ())
            assert await agents.cost(ORG, other.id) == (7 if owner is other else None)
        assert await agents.cost(ORG, agent.id) == 5 + 2**40
        assert await agents.cost(OTHER_ORG, agent.id) is None

    async def test_recorded_request_is_recognised(self, agents: AgentStore) -> None:
        assert not await agents.record_request(None)
        assert not await agents.record_request(key("ResetMessages"))
        assert await agents.record_request(key("ResetMessages"))
        with pytest.raises(RequestIdReused):
            await agents.record_request(key("ResetMessages", fingerprint="other"))

    async def test_deletion_of_an_agent_revokes_its_leases(
        self, agents: AgentStore, runs: RunStore, leases: LeaseStore, clock: FrozenClock
    ) -> None:
        agent = await made(agents, an_agent(clock))
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        scope = ErasureScope(unshared_blocks=True)
        stored = Deletion(unshared_blocks=True)
        assert await agents.begin_deletion(ORG, agent.id, scope) == DeletionStart(((agent.id, stored),))
        # Who asks again takes the deletion up where it stopped.
        assert await agents.begin_deletion(ORG, agent.id) == DeletionStart(((agent.id, stored),))
        assert [(agent.state, draft) for agent, draft in await agents.list_unfinished()] == [
            (AgentState.DELETING, msgspec.json.encode(stored))
        ]
        with pytest.raises(LeaseLost):
            await runs.write(started.claim.lease)
        assert await runs.claim_next(agent.default_conversation_id, "me") is None
        assert await leases.claimable("me") == ()
        with pytest.raises(NotFound):
            await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        await agents.remove(agent.id)
        assert await agents.list_unfinished() == ()
        assert not (await agents.begin_deletion(ORG, agent.id)).agents
        with pytest.raises(NotFound):
            await runs.get(ORG, started.run.id)

    async def test_deletion_by_another_organization_changes_nothing(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock
    ) -> None:
        agent = await made(agents, an_agent(clock))
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        assert not (await agents.begin_deletion(OTHER_ORG, agent.id)).agents
        await runs.write(started.claim.lease)
        assert (await agents.get(ORG, agent.id)).id == agent.id

    async def test_tags_are_listed_in_alphabetical_order(self, agents: AgentStore, clock: FrozenClock) -> None:
        await made(agents, an_agent(clock, tags=("b", "a", "Tea")))
        await made(agents, an_agent(clock, tags=("b", "c%")))
        await made(agents, an_agent(clock, organization_id=OTHER_ORG, tags=("z",)))
        first = await agents.tags(ORG, PageQuery(2, ascending=True), None)
        second = await agents.tags(ORG, PageQuery(9, ascending=True, cursor=first.next_cursor), None)
        # Where capitals stand is the engine's own alphabet.
        assert {*first.items, *second.items} == {"Tea", "a", "b", "c%"}
        assert len(first.items) == 2
        assert second.next_cursor is None
        assert (await agents.tags(ORG, PageQuery(9, ascending=False), None)).items == tuple(
            reversed((*first.items, *second.items))
        )
        assert (await agents.tags(ORG, ALL, "TE")).items == ("Tea",)
        assert (await agents.tags(ORG, ALL, "%")).items == ("c%",)
        ordered = (*first.items, *second.items)
        behind = await agents.tags(ORG, replace(ALL, after_id="b"), None)
        assert behind.items == ordered[ordered.index("b") + 1 :]
        ahead = await agents.tags(ORG, replace(ALL, before_id="b"), None)
        assert ahead.items == ordered[: ordered.index("b")]
