"""The suites of agent stores and run stores."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.errors import MnemeshError, NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost, OtidReused, RunUnderWay
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentState, AgentType, AttachedTool, Correction
from mnemesh_orchestrator.model.erasure import ErasureScope
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.inputs import InputMessage, sent_messages
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry, JournalledAnswer
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_orchestrator.model.rules import Conditional, ConditionalOutcome, ExitLoop
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import Run, RunError, RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.model.steps import Step, StepStatus
from mnemesh_orchestrator.store.base import AgentStore, RunStore, StepStore
from mnemesh_orchestrator.store.base.leases import LeaseStore
from mnemesh_types.messages import Message, Role, TextPart, ToolReturn, ToolStatus
from mnemesh_types.usage import Usage

ORG, OTHER_ORG = new_id("org"), new_id("org")
ALL = PageQuery(100, ascending=True)


def an_agent(clock: FrozenClock, name: str = "Ada's", **fields: Any) -> Agent:
    agent_id = new_id("agent")
    fields.setdefault("organization_id", ORG)
    return Agent(
        id=agent_id,
        name=name,
        type=fields.pop("type", AgentType.LETTA_V1),
        system="You are a test.",
        model="scripted/one",
        created_at=clock.now(),
        updated_at=clock.now(),
        default_conversation_id=derive_id("conv", agent_id),
        **fields,
    )


def key(method: str = "CreateAgent", request_id: str = "r-1", fingerprint: str = "f", org: str = ORG) -> RequestKey:
    return RequestKey(org, method, request_id, fingerprint)


async def made(store: AgentStore, agent: Agent) -> Agent:
    await store.begin_creation(None, agent, b"{}")
    assert await store.activate(agent)
    return await store.get(agent.organization_id, agent.id)


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
        assert not await agents.begin_deletion(ORG, agent.id)
        assert await agents.creation(ORG, agent.id) == (agent, b"draft")
        assert await agents.creation(OTHER_ORG, agent.id) is None
        assert await agents.unfinished() == ((agent, b"draft"),)

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
        assert await agents.unfinished() == ()
        with pytest.raises(NotFound):
            await agents.get(OTHER_ORG, agent.id)

    async def test_only_an_agent_in_creation_becomes_active(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = await made(agents, an_agent(clock))
        await agents.update(None, ORG, agent.id, lambda agent: replace(agent, name="Changed"))
        assert not await agents.activate(agent)
        assert (await agents.get(ORG, agent.id)).name == "Changed"
        assert await agents.begin_deletion(ORG, agent.id)
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
        assert len(await agents.unfinished()) == 2

    async def test_concurrent_creations_with_one_request_id_create_one_agent(
        self, agents: AgentStore, clock: FrozenClock
    ) -> None:
        candidates = [an_agent(clock) for _ in range(8)]
        begun = await asyncio.gather(*(agents.begin_creation(key(), agent, b"") for agent in candidates))
        assert len({agent_id for agent_id, _ in begun}) == 1
        assert sorted(replayed for _, replayed in begun) == [False] + [True] * 7
        assert len(await agents.unfinished()) == 1

    async def test_abandoned_agent_is_deleted_and_its_request_id_released(
        self, agents: AgentStore, clock: FrozenClock
    ) -> None:
        first, second = an_agent(clock), an_agent(clock)
        await agents.begin_creation(key(), first, b"")
        assert await agents.abandon(first.id, key())
        assert not await agents.abandon(first.id, key())
        assert [(agent.id, agent.state, draft) for agent, draft in await agents.unfinished()] == [
            (first.id, AgentState.DELETING, b"")
        ]
        assert await agents.begin_creation(key(), second, b"") == (second.id, False)
        await agents.remove(first.id)
        assert [agent.id for agent, _ in await agents.unfinished()] == [second.id]

    async def test_active_agent_cannot_be_abandoned(self, agents: AgentStore, clock: FrozenClock) -> None:
        agent = await made(agents, an_agent(clock))
        assert not await agents.abandon(agent.id, None)
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
        await runs.finish(first.claim.lease, an_end(first.run, clock), (), (), corrections=learnt)
        assert (await agents.get(ORG, agent.id)).corrections == learnt
        second = await runs.start(None, a_run(agent, clock), "instance-1", reject_busy=False)
        assert second.claim is not None
        assert second.claim.agent.corrections == learnt
        await runs.finish(second.claim.lease, an_end(second.run, clock), (), ())
        assert (await agents.get(ORG, agent.id)).corrections == learnt, "a run that taught nothing changes nothing"
        renamed = await agents.update(None, ORG, agent.id, lambda old: replace(old, name="Grace's"))
        assert renamed.corrections == (await agents.get(ORG, agent.id)).corrections == learnt
        assert (await agents.get(ORG, other.id)).corrections == ()

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
        assert await agents.begin_deletion(ORG, agent.id, scope) == scope
        # Who asks again takes the deletion up where it stopped.
        assert await agents.begin_deletion(ORG, agent.id) == scope
        assert [(agent.state, draft) for agent, draft in await agents.unfinished()] == [
            (AgentState.DELETING, msgspec.json.encode(scope))
        ]
        with pytest.raises(LeaseLost):
            await runs.write(started.claim.lease)
        assert await runs.claim_next(agent.default_conversation_id, "me") is None
        assert await leases.claimable("me") == ()
        with pytest.raises(NotFound):
            await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        await agents.remove(agent.id)
        assert await agents.unfinished() == ()
        assert not await agents.begin_deletion(ORG, agent.id)
        with pytest.raises(NotFound):
            await runs.get(ORG, started.run.id)

    async def test_deletion_by_another_organization_changes_nothing(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock
    ) -> None:
        agent = await made(agents, an_agent(clock))
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        assert not await agents.begin_deletion(OTHER_ORG, agent.id)
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


def a_run(agent: Agent, clock: FrozenClock, *, otid: str | None = None, **fields: Any) -> Run:
    sent = (InputMessage((TextPart(fields.pop("text", "Hello")),), otid=otid),)
    return Run(
        id=new_id("run"),
        organization_id=fields.pop("organization_id", agent.organization_id),
        subject_id=new_id("user"),
        agent_id=agent.id,
        conversation_id=fields.pop("conversation_id", agent.default_conversation_id),
        created_at=clock.now(),
        updated_at=clock.now(),
        input=sent,
        sent=sent_messages(sent),
        **fields,
    )


def an_end(run: Run, clock: FrozenClock, reason: StopReason = StopReason.END_TURN, **fields: Any) -> Run:
    return replace(
        run,
        status=RunStatus.COMPLETED,
        stop_reason=reason,
        completed_at=clock.now(),
        total_ms=5,
        **fields,
    )


def an_event(run: Run, number: int, clock: FrozenClock) -> RunEvent:
    shown = MessageEvent("assistant", new_id("message"), "otid", clock.now(), (TextPart(f"Event {number}"),))
    return RunEvent(run.id, clock.now(), shown, number, new_id("step"))


def an_answer(step_id: str, clock: FrozenClock, text: str = "Hello.") -> JournalEntry:
    message = Message(new_id("message"), Role.ASSISTANT, clock.now(), (TextPart(text),))
    return JournalEntry(
        step_id, EntryKind.ANSWER, clock.now(), answer=JournalledAnswer(message, (), Usage(1, 2, 3), 4, "system")
    )


def a_step(run: Run, number: int, clock: FrozenClock, **fields: Any) -> Step:
    return Step(
        id=derive_id("step", run.id, str(number)),
        run_id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        number=number,
        model=fields.pop("model", "scripted/one"),
        provider="scripted",
        context_window=8_000,
        created_at=clock.now() + timedelta(seconds=number),
        status=StepStatus.SUCCESS,
        **fields,
    )


async def ran(runs: RunStore, agent: Agent, clock: FrozenClock) -> Run:
    """Starts and ends a run of the agent."""
    claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
    assert claim is not None
    await runs.finish(claim.lease, an_end(claim.run, clock), (), ())
    return await runs.get(ORG, claim.run.id)


class RunStoreSuite:
    """Subclass it with fixtures `agents`, `runs` and `leases` that return empty stores on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def test_first_run_of_a_conversation_is_claimed_at_once(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        config = RunConfig(max_steps=3, include_events=("assistant",), override_model="scripted/two")
        run = a_run(agent, clock, config=config, background=True, retried_run_ids=(new_id("run"),))
        started = await runs.start(None, run, "me", reject_busy=False)
        assert not started.replayed
        assert started.run == replace(run, status=RunStatus.RUNNING)
        claim = started.claim
        assert claim is not None
        assert (claim.run, claim.agent, claim.resumed) == (started.run, agent, False)
        assert (claim.conversation.id, claim.conversation.is_default) == (agent.default_conversation_id, True)
        assert claim.lease == Lease(run.id, agent.default_conversation_id, "me", 1)
        assert await runs.get(ORG, run.id) == started.run

    async def test_run_of_a_missing_agent_or_conversation_is_refused(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        run = a_run(agent, clock)
        for wrong in (
            replace(run, agent_id=new_id("agent")),
            replace(run, conversation_id=new_id("conv")),
            replace(run, organization_id=OTHER_ORG),
        ):
            with pytest.raises(NotFound):
                await runs.start(None, wrong, "me", reject_busy=False)
        with pytest.raises(NotFound):
            await runs.get(ORG, run.id)

    async def test_runs_of_a_conversation_are_claimed_in_order(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = [await runs.start(None, a_run(agent, clock), "me", reject_busy=False) for _ in range(4)]
        assert [item.claim is not None for item in started] == [True, False, False, False]
        assert [item.run.status for item in started] == ["running", "created", "created", "created"]
        claim = started[0].claim
        for number, expected in enumerate(started):
            assert claim is not None
            assert (claim.run.id, claim.lease.epoch) == (expected.run.id, number + 1)
            waits = await runs.finish(claim.lease, an_end(claim.run, clock), (), ())
            assert waits is (number < 3)
            claim = await runs.claim_next(agent.default_conversation_id, "me")
        assert claim is None

    async def test_one_of_many_concurrent_runs_starts_and_the_others_queue(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        wanted = [a_run(agent, clock) for _ in range(10)]
        started = await asyncio.gather(*(runs.start(None, run, "me", reject_busy=False) for run in wanted))
        claims = [item.claim for item in started if item.claim is not None]
        assert len(claims) == 1
        served, claim = [], claims[0]
        while claim is not None:
            served.append(claim.run.id)
            await runs.finish(claim.lease, an_end(claim.run, clock), (), ())
            claim = await runs.claim_next(agent.default_conversation_id, "me")
        assert sorted(served) == sorted(run.id for run in wanted)

    async def test_refusal_of_a_busy_conversation_names_its_run(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = await runs.start(None, a_run(agent, clock), "me", reject_busy=True)
        refused = a_run(agent, clock)
        with pytest.raises(ConversationBusy) as raised:
            await runs.start(None, refused, "me", reject_busy=True)
        assert raised.value.metadata["run_id"] == first.run.id
        with pytest.raises(NotFound):
            await runs.get(ORG, refused.id)

    async def test_conversations_do_not_wait_for_each_other(
        self, agents: AgentStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        other = await made(agents, an_agent(clock))
        for one in (agent, other):
            assert (await runs.start(None, a_run(one, clock), "me", reject_busy=True)).claim is not None

    async def test_repeated_request_returns_the_same_run(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        request = key("SendMessage")
        first = await runs.start(request, a_run(agent, clock), "me", reject_busy=True)
        again = await runs.start(request, a_run(agent, clock), "me", reject_busy=True)
        assert (again.run.id, again.replayed, again.claim) == (first.run.id, True, None)
        with pytest.raises(RequestIdReused):
            await runs.start(replace(request, fingerprint="other"), a_run(agent, clock), "me", reject_busy=False)
        other_method = await runs.start(key("StartRun"), a_run(agent, clock), "me", reject_busy=False)
        assert other_method.run.id != first.run.id

    async def test_request_is_known_until_its_run_is_deleted(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        request = key("SendMessage")
        started = await runs.start(request, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        await runs.finish(started.claim.lease, an_end(started.run, clock), (), ())
        clock.advance(86_400 * 30)
        await runs.purge_requests(clock.now())
        assert (await runs.start(request, a_run(agent, clock), "me", reject_busy=False)).replayed
        await runs.delete(ORG, started.run.id)
        assert not (await runs.start(request, a_run(agent, clock), "me", reject_busy=False)).replayed

    async def test_repeated_otid_returns_the_same_run_during_and_after_it(
        self, agents: AgentStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)
        again = await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=True)
        assert (again.run.id, again.replayed) == (first.run.id, True)
        assert first.claim is not None
        await runs.finish(first.claim.lease, an_end(first.run, clock), (), ())
        ended = await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=True)
        assert (ended.run.id, ended.run.status) == (first.run.id, RunStatus.COMPLETED)
        other = await made(agents, an_agent(clock))
        assert not (await runs.start(None, a_run(other, clock, otid="o-1"), "me", reject_busy=True)).replayed

    async def test_otid_with_other_content_is_refused(self, runs: RunStore, agent: Agent, clock: FrozenClock) -> None:
        first = await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)
        with pytest.raises(OtidReused) as refused:
            await runs.start(None, a_run(agent, clock, otid="o-1", text="Other"), "me", reject_busy=False)
        assert refused.value.metadata == {"field": "messages[0].otid", "run_id": first.run.id}
        assert [run.id for run in (await runs.list(ORG, RunFilter(), ALL)).items] == [first.run.id]

    async def test_runs_are_listed_in_order_of_creation(self, runs: RunStore, agent: Agent, clock: FrozenClock) -> None:
        sent = []
        for seconds in (60, -3_600, 0, 1):
            clock.advance(seconds)
            sent.append((await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).run.id)
        first = await runs.list(ORG, RunFilter(agent_ids=(agent.id,)), PageQuery(3, ascending=True))
        rest = await runs.list(ORG, RunFilter(), PageQuery(3, ascending=True, cursor=first.next_cursor))
        assert [run.id for run in (*first.items, *rest.items)] == sent
        newest = await runs.list(ORG, RunFilter(), PageQuery(1, ascending=False))
        assert [run.id for run in newest.items] == sent[-1:]

    async def test_one_retry_of_an_input_runs_at_a_time(self, runs: RunStore, agent: Agent, clock: FrozenClock) -> None:
        first = a_run(agent, clock)
        retries = [a_run(agent, clock, retried_run_ids=(first.id,)) for _ in range(2)]
        await runs.start(None, first, "me", reject_busy=False)
        assert (await runs.newest_attempt(ORG, first.id)).id == first.id
        await runs.start(None, retries[0], "me", reject_busy=False)
        for run in (first, retries[0]):
            assert (await runs.newest_attempt(ORG, run.id)).id == retries[0].id
        with pytest.raises(RunUnderWay) as refused:
            await runs.start(None, retries[1], "me", reject_busy=False)
        assert refused.value.metadata == {"resource_id": retries[0].id}
        with pytest.raises(NotFound):
            await runs.newest_attempt(OTHER_ORG, first.id)

    async def test_otid_of_another_organization_is_not_found(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)
        with pytest.raises(NotFound):
            await runs.start(None, a_run(agent, clock, otid="o-1", organization_id=OTHER_ORG), "me", reject_busy=False)

    @pytest.mark.parametrize("by", ["request_id", "otid"])
    async def test_concurrent_repeats_are_one_run(
        self, runs: RunStore, agent: Agent, clock: FrozenClock, by: str
    ) -> None:
        request, otid = (key("SendMessage"), None) if by == "request_id" else (None, "o-1")
        started = await asyncio.gather(
            *(runs.start(request, a_run(agent, clock, otid=otid), "me", reject_busy=False) for _ in range(8))
        )
        assert len({item.run.id for item in started}) == 1
        assert sorted(item.replayed for item in started) == [False] + [True] * 7
        assert len((await runs.list(ORG, RunFilter(), ALL)).items) == 1

    async def test_lease_of_another_instance_is_respected_until_it_expires(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        conversation_id = agent.default_conversation_id
        clock.advance(29)
        assert await runs.claim_next(conversation_id, "you") is None
        assert await leases.claimable("you") == ()
        clock.advance(1)
        assert await leases.claimable("you") == (conversation_id,)
        taken = await runs.claim_next(conversation_id, "you")
        assert taken is not None
        assert (taken.run, taken.resumed) == (started.run, True)
        assert taken.lease == Lease(started.run.id, conversation_id, "you", 2)

    @pytest.mark.parametrize("how", ["renew", "write"])
    async def test_renewals_and_writes_extend_the_lease(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock, how: str
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        for _ in range(3):
            clock.advance(20)
            await (leases.renew([started.claim.lease]) if how == "renew" else runs.write(started.claim.lease))
        assert await runs.claim_next(agent.default_conversation_id, "you") is None

    async def test_instance_reclaims_its_own_runs_at_once(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        await runs.write(started.claim.lease, events=[an_event(started.run, 1, clock), an_event(started.run, 2, clock)])
        assert await leases.claimable("me") == (agent.default_conversation_id,)
        again = await runs.claim_next(agent.default_conversation_id, "me")
        assert again is not None
        assert (again.resumed, again.lease.epoch, again.run.last_sequence) == (True, 2, 2)

    async def test_write_after_a_lost_lease_is_refused(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        old = started.claim.lease
        clock.advance(30)
        taken = await runs.claim_next(agent.default_conversation_id, "you")
        assert taken is not None
        step = new_id("step")
        with pytest.raises(LeaseLost):
            await runs.write(old, entries=[an_answer(step, clock)], events=[an_event(started.run, 1, clock)])
        with pytest.raises(LeaseLost):
            await runs.finish(old, an_end(started.run, clock), (), ())
        assert await leases.renew([old]) == (old,)
        assert await runs.journal(started.run.id) == ()
        assert await runs.events(started.run.id, 0, 10) == ()
        assert (await runs.get(ORG, started.run.id)).status is RunStatus.RUNNING
        clock.advance(30)
        assert await leases.claimable("me") == (agent.default_conversation_id,)

    async def test_one_of_many_concurrent_claims_wins(self, runs: RunStore, agent: Agent, clock: FrozenClock) -> None:
        await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        clock.advance(30)
        claims = await asyncio.gather(
            *(runs.claim_next(agent.default_conversation_id, f"instance-{number}") for number in range(6))
        )
        assert len([claim for claim in claims if claim is not None]) == 1

    async def test_second_answer_of_a_step_is_refused(self, runs: RunStore, agent: Agent, clock: FrozenClock) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        lease, step = started.claim.lease, new_id("step")
        first = an_answer(step, clock)
        returned = ToolReturn.from_text("call-1", "probe", ToolStatus.SUCCESS, "done", ("out",), ("err",))
        result = JournalEntry(step, EntryKind.RESULT, clock.now(), 1, result=returned)
        begun = JournalEntry(step, EntryKind.STARTED, clock.now(), 1)
        await runs.write(lease, entries=[first])
        await runs.write(lease, entries=[begun, result])
        with pytest.raises(sa.exc.IntegrityError):
            await runs.write(
                lease, entries=[an_answer(step, clock, "Another.")], events=[an_event(started.run, 1, clock)]
            )
        entries = {(entry.kind, entry.ordinal): entry for entry in await runs.journal(started.run.id)}
        assert entries == {
            (EntryKind.ANSWER, 0): first,
            (EntryKind.STARTED, 1): begun,
            (EntryKind.RESULT, 1): result,
        }
        assert await runs.events(started.run.id, 0, 10) == ()

    async def test_events_are_read_in_order_after_a_sequence_number(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        events = [an_event(started.run, number, clock) for number in range(1, 6)]
        await runs.write(started.claim.lease, events=events[:3])
        await runs.write(started.claim.lease, events=events[3:])
        assert await runs.events(started.run.id, 0, 10) == tuple(events)
        assert await runs.events(started.run.id, 2, 2) == tuple(events[2:4])
        assert await runs.events(started.run.id, 5, 2) == ()
        assert (await runs.get(ORG, started.run.id)).last_sequence == 5
        with pytest.raises(sa.exc.IntegrityError):
            await runs.write(started.claim.lease, events=[events[0]])

    async def test_end_of_a_run_is_written_completely(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        run, lease = started.run, started.claim.lease
        await runs.write(lease, entries=[an_answer(new_id("step"), clock)], events=[an_event(run, 1, clock)])
        clock.advance(2)
        error = RunError("PROVIDER_AUTH", "No.", {"status": "401"})
        ended = replace(
            an_end(run, clock, StopReason.LLM_API_ERROR, error=error, usage=Usage(1, None, 3), step_count=2),
            status=RunStatus.FAILED,
            last_sequence=3,
            first_token_ms=7,
            updated_at=clock.now(),
        )
        last = [
            RunEvent(run.id, clock.now(), StopEvent(StopReason.LLM_API_ERROR, RunStatus.FAILED), 2),
            RunEvent(run.id, clock.now(), UsageEvent(Usage(1, None, 3), 2), 3),
        ]
        assert not await runs.finish(lease, ended, last, [a_step(run, 1, clock)])
        assert await runs.get(ORG, run.id) == ended
        assert [event.body for event in await runs.events(run.id, 1, 10)] == [event.body for event in last]
        assert await runs.journal(run.id) == ()
        assert await leases.claimable("me") == ()
        with pytest.raises(LeaseLost):
            await runs.finish(lease, ended, (), ())
        with pytest.raises(LeaseLost):
            await runs.write(lease)

    async def test_runs_are_filtered_and_paged(
        self, agents: AgentStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        other = await made(agents, an_agent(clock))
        done = await ran(runs, agent, clock)
        clock.advance(1)
        running = (await runs.start(None, a_run(agent, clock, background=True), "me", reject_busy=False)).run
        clock.advance(1)
        waiting = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).run
        clock.advance(1)
        elsewhere = (await runs.start(None, a_run(other, clock), "me", reject_busy=False)).run
        for where, expected in (
            (RunFilter(), [done, running, waiting, elsewhere]),
            (RunFilter(agent_ids=(other.id,)), [elsewhere]),
            (RunFilter(statuses=(RunStatus.CREATED, RunStatus.COMPLETED)), [done, waiting]),
            (RunFilter(background=True), [running]),
            (RunFilter(stop_reason="end_turn"), [done]),
            (RunFilter(conversation_id=agent.default_conversation_id, active=True), [running, waiting]),
            (RunFilter(active=False), [done]),
        ):
            page = await runs.list(ORG, where, ALL)
            assert [run.id for run in page.items] == [run.id for run in expected], where
        newest = await runs.list(ORG, RunFilter(), PageQuery(3, ascending=False))
        rest = await runs.list(ORG, RunFilter(), PageQuery(3, ascending=False, cursor=newest.next_cursor))
        assert [run.id for run in (*newest.items, *rest.items)] == [
            run.id for run in (elsewhere, waiting, running, done)
        ]
        assert (await runs.list(OTHER_ORG, RunFilter(), ALL)).items == ()
        with pytest.raises(NotFound):
            await runs.get(OTHER_ORG, done.id)

    async def test_queued_run_can_be_ended_and_claimed_run_cannot(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        second = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert first.claim is not None
        ended = replace(an_end(second.run, clock, StopReason.CANCELLED), status=RunStatus.CANCELLED, last_sequence=1)
        event = RunEvent(second.run.id, clock.now(), StopEvent(StopReason.CANCELLED, RunStatus.CANCELLED), 1)
        assert not await runs.cancel_waiting(an_end(first.run, clock), [an_event(first.run, 1, clock)])
        assert await runs.events(first.run.id, 0, 10) == ()
        assert await runs.cancel_waiting(ended, [event])
        assert not await runs.cancel_waiting(ended, [event])
        assert (await runs.get(ORG, second.run.id)).stop_reason is StopReason.CANCELLED
        assert [found.body for found in await runs.events(second.run.id, 0, 10)] == [event.body]
        assert not await runs.finish(first.claim.lease, an_end(first.run, clock), (), ())

    async def test_one_of_concurrent_cancellation_and_claim_wins(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        for _ in range(5):
            first = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
            second = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
            assert first.claim is not None
            await runs.finish(first.claim.lease, an_end(first.run, clock), (), ())
            ended = replace(an_end(second.run, clock, StopReason.CANCELLED), status=RunStatus.CANCELLED)
            claim, cancelled = await asyncio.gather(
                runs.claim_next(agent.default_conversation_id, "me"), runs.cancel_waiting(ended, ())
            )
            assert cancelled is (claim is None)
            if claim is not None:
                await runs.finish(claim.lease, an_end(claim.run, clock), (), ())

    async def test_only_an_ended_run_can_be_deleted_with_all_its_rows(
        self, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)
        assert started.claim is not None
        run = started.run
        with pytest.raises(RunUnderWay):
            await runs.delete(ORG, run.id)
        step = a_step(run, 1, clock)
        await runs.finish(started.claim.lease, an_end(run, clock), [an_event(run, 1, clock)], [step])
        with pytest.raises(NotFound):
            await runs.delete(OTHER_ORG, run.id)
        await runs.delete(ORG, run.id)
        for gone in (runs.get(ORG, run.id), runs.delete(ORG, run.id), recorded.get(ORG, step.id)):
            with pytest.raises(NotFound):
                await gone
        assert await runs.events(run.id, 0, 10) == ()
        assert not (await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)).replayed

    async def test_old_requests_are_purged(self, agents: AgentStore, runs: RunStore, clock: FrozenClock) -> None:
        await agents.record_request(key("ResetMessages"))
        clock.advance(3_600)
        await agents.record_request(key("ResetMessages", "r-2"))
        assert await runs.purge_requests(datetime(2026, 1, 1, 0, 30, tzinfo=UTC)) == 1
        assert not await agents.record_request(key("ResetMessages"))
        assert await agents.record_request(key("ResetMessages", "r-2"))
