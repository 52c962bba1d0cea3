"""The suite of run stores."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import LeaseLost, OtidReused, RunUnderWay
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import EntryKind, JournalEntry, RunEnd, RunEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.run_rows import StepStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_types.agents import RunError
from mnemesh_types.messages import ToolReturn, ToolStatus
from mnemesh_types.usage import Usage

from .records import ALL, ORG, OTHER_ORG, a_run, a_step, an_agent, an_answer, an_end, an_event, key, made, ran
from .run_claim_suite import RunClaimSuite


class RunStoreSuite(RunClaimSuite):
    """Subclass it with fixtures `agents`, `runs` and `leases` that return empty stores on `clock`."""

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
        await runs.finish(started.claim.lease, RunEnd(an_end(started.run, clock)), ())
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
        await runs.finish(first.claim.lease, RunEnd(an_end(first.run, clock)), ())
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
        assert await runs.events(started.run.id, 2**63 - 1, 2) == ()
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
        assert not (await runs.finish(lease, RunEnd(ended, steps=[a_step(run, 1, clock)]), last)).has_next
        assert await runs.get(ORG, run.id) == ended
        assert [event.body for event in await runs.events(run.id, 1, 10)] == [event.body for event in last]
        assert await runs.journal(run.id) == ()
        assert await leases.claimable("me") == ()
        with pytest.raises(LeaseLost):
            await runs.finish(lease, RunEnd(ended), ())
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

    async def test_only_an_ended_run_can_be_deleted_with_all_its_rows(
        self, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)
        assert started.claim is not None
        run = started.run
        with pytest.raises(RunUnderWay):
            await runs.delete(ORG, run.id)
        step = a_step(run, 1, clock)
        await runs.finish(started.claim.lease, RunEnd(an_end(run, clock), steps=[step]), [an_event(run, 1, clock)])
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
