"""The suite of the store of schedules."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from mnemesh_kit.errors import FailedPrecondition, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import RunEnd
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.model.schedules import (
    AWAITS_APPROVAL,
    RUNS_STILL,
    WAITS_STILL,
    OverlapRule,
    Schedule,
    ScheduleFilter,
    planned,
)
from mnemesh_orchestrator.store import schedules as store
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.schedules import ScheduleStore
from mnemesh_types.messages import TextPart

from .approval_suite import asked_by
from .records import ALL, ORG, OTHER_ORG, a_run, an_agent, an_end, key, made

HOUR = 3_600.0


def a_schedule(agent: Agent, clock: FrozenClock, **fields: Any) -> Schedule:
    """An hourly schedule of an agent's default conversation."""
    now = clock.now()
    return Schedule(
        id=new_id("schedule"),
        organization_id=agent.organization_id,
        subject_id=new_id("user"),
        agent_id=agent.id,
        conversation_id=agent.default_conversation_id,
        messages=(InputMessage((TextPart("It is time."),)),),
        created_at=now,
        updated_at=now,
        **{"cron": "0 * * * *", **fields},
    )


class ScheduleStoreSuite:
    """Subclass it with fixtures `agents`, `runs` and `schedules` on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def _created(self, schedules: ScheduleStore, agent: Agent, clock: FrozenClock, **fields: Any) -> Schedule:
        return await schedules.create(None, planned(a_schedule(agent, clock, **fields), clock.now()))

    async def _fire(
        self, schedules: ScheduleStore, agent: Agent, clock: FrozenClock, replicas: int = 1
    ) -> tuple[Run, ...]:
        """Starts what is due, in several processes at once."""
        due = await schedules.list_due(clock.now(), 10)
        wanted = [(schedule, a_run(agent, clock, background=True)) for schedule in due for _ in range(replicas)]
        fired = await asyncio.gather(*(schedules.fire(schedule, run, None) for schedule, run in wanted))
        return tuple(run for run in fired if run is not None)

    async def test_a_due_time_starts_one_run_in_one_of_several_processes(
        self, schedules: ScheduleStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        schedule = await self._created(schedules, agent, clock)
        assert await schedules.next_time() == schedule.next_run_at
        assert await self._fire(schedules, agent, clock) == ()
        clock.advance(HOUR)
        (run,) = await self._fire(schedules, agent, clock, replicas=4)
        assert [each.id for each in (await runs.list(ORG, RunFilter(), ALL)).items] == [run.id]
        after = await schedules.get(ORG, schedule.id)
        assert (after.run_count, after.skipped_count, after.last_run_id) == (1, 0, run.id)
        assert (after.last_run_at, after.next_run_at) == (clock.now(), clock.now() + timedelta(hours=1))
        assert await self._fire(schedules, agent, clock) == ()

    async def test_a_schedule_that_changed_meanwhile_does_not_start_its_old_run(
        self, schedules: ScheduleStore, agent: Agent, clock: FrozenClock
    ) -> None:
        schedule = await self._created(schedules, agent, clock)
        clock.advance(HOUR)
        (due,) = await schedules.list_due(clock.now(), 10)
        await schedules.update(None, ORG, schedule.id, lambda found: replace(found, name="renamed"))
        assert await schedules.fire(due, a_run(agent, clock), None) is None
        (renamed,) = await schedules.list_due(clock.now(), 10)
        await schedules.delete(None, ORG, schedule.id)
        assert await schedules.fire(renamed, a_run(agent, clock), None) is None

    async def test_overlapping_runs_are_skipped_or_one_of_them_waits(
        self, schedules: ScheduleStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        schedule = await self._created(schedules, agent, clock)
        clock.advance(HOUR)
        assert len(await self._fire(schedules, agent, clock)) == 1
        claim = await runs.claim_next(agent.default_conversation_id, "me")
        assert claim is not None
        clock.advance(HOUR)
        assert await self._fire(schedules, agent, clock) == ()
        skipped = await schedules.get(ORG, schedule.id)
        assert (skipped.run_count, skipped.skipped_count, skipped.last_skip) == (1, 1, RUNS_STILL)
        await schedules.update(None, ORG, schedule.id, lambda found: replace(found, overlap=OverlapRule.QUEUE))
        clock.advance(HOUR)
        (waiting,) = await self._fire(schedules, agent, clock)
        clock.advance(HOUR)
        assert await self._fire(schedules, agent, clock) == ()
        assert (await schedules.get(ORG, schedule.id)).last_skip == WAITS_STILL
        finished = await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        assert finished.has_next
        assert (await runs.get(ORG, waiting.id)).status is RunStatus.CREATED

    async def test_a_conversation_that_waits_for_an_approval_is_left_alone(
        self, schedules: ScheduleStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        schedule = await self._created(schedules, agent, clock)
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        ended = an_end(claim.run, clock, StopReason.REQUIRES_APPROVAL)
        await runs.finish(claim.lease, RunEnd(ended, approval=asked_by(claim, clock)), ())
        clock.advance(HOUR)
        assert await self._fire(schedules, agent, clock) == ()
        assert (await schedules.get(ORG, schedule.id)).last_skip == AWAITS_APPROVAL

    async def test_the_last_run_ends_a_schedule_which_is_purged_later(
        self, schedules: ScheduleStore, agent: Agent, clock: FrozenClock
    ) -> None:
        once = await self._created(schedules, agent, clock, cron=None, due_at=clock.now() + timedelta(hours=1))
        paused = await self._created(schedules, agent, clock, paused=True)
        clock.advance(HOUR)
        assert len(await self._fire(schedules, agent, clock)) == 1
        ended = await schedules.get(ORG, once.id)
        assert (ended.next_run_at, ended.has_ended, await schedules.next_time()) == (None, True, None)
        assert await schedules.purge(clock.now()) == 0
        clock.advance(1)
        assert await schedules.purge(clock.now()) == 1
        assert [each.id for each in (await schedules.list(ORG, ScheduleFilter(), ALL)).items] == [paused.id]

    async def test_an_organization_has_a_limited_number_that_have_not_ended(
        self,
        schedules: ScheduleStore,
        agents: AgentStore,
        agent: Agent,
        clock: FrozenClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(store, "MOST_SCHEDULES", 2)
        at = clock.now() + timedelta(hours=1)
        once = await self._created(schedules, agent, clock, cron=None, due_at=at)
        await self._created(schedules, agent, clock, paused=True)
        for wanted in (a_schedule(agent, clock), a_schedule(agent, clock, created_by_agent=True)):
            with pytest.raises(FailedPrecondition, match="2 schedules"):
                await schedules.create(None, wanted, most_of_agent=20)
        clock.advance(HOUR)
        await self._fire(schedules, agent, clock)
        await self._created(schedules, agent, clock)
        with pytest.raises(FailedPrecondition):
            await schedules.update(None, ORG, once.id, lambda found: replace(found, next_run_at=clock.now()))
        await schedules.update(None, ORG, once.id, lambda found: replace(found, name="renamed"))
        other = await made(agents, replace(an_agent(clock), organization_id=OTHER_ORG))
        assert await self._created(schedules, other, clock)

    async def test_organizations_take_turns(
        self, schedules: ScheduleStore, agents: AgentStore, agent: Agent, clock: FrozenClock
    ) -> None:
        other = await made(agents, replace(an_agent(clock), organization_id=OTHER_ORG))
        for minute in range(3):
            await self._created(schedules, agent, clock, cron=f"{minute} * * * *")
        await self._created(schedules, other, clock, cron="30 * * * *")
        clock.advance(HOUR)
        due = await schedules.list_due(clock.now(), 3)
        assert [each.organization_id for each in due] == [ORG, OTHER_ORG, ORG]

    async def test_repeated_creation_is_one_schedule(
        self, schedules: ScheduleStore, agent: Agent, clock: FrozenClock
    ) -> None:
        wanted = [planned(a_schedule(agent, clock), clock.now()) for _ in range(2)]
        first, second = [await schedules.create(key("CreateSchedule"), each) for each in wanted]
        assert first == second == await schedules.create(None, first)

    async def test_schedules_belong_to_an_organization_and_an_agent(
        self, schedules: ScheduleStore, agents: AgentStore, agent: Agent, clock: FrozenClock
    ) -> None:
        schedule = await self._created(schedules, agent, clock)
        other = await made(agents, an_agent(clock))
        assert (await schedules.list(ORG, ScheduleFilter(agent_id=other.id), ALL)).items == ()
        assert (await schedules.list(OTHER_ORG, ScheduleFilter(), ALL)).items == ()
        with pytest.raises(NotFound):
            await schedules.get(OTHER_ORG, schedule.id)
        with pytest.raises(NotFound):
            await schedules.update(None, OTHER_ORG, schedule.id, lambda found: found)
        assert not await schedules.delete(None, OTHER_ORG, schedule.id)
        foreign = replace(a_schedule(agent, clock), organization_id=OTHER_ORG)
        with pytest.raises(NotFound):
            await schedules.create(None, foreign)
        with pytest.raises(NotFound):
            await schedules.create(None, replace(a_schedule(agent, clock), conversation_id=new_id("conv")))

    async def test_an_agent_has_a_limited_number_of_its_own_and_deletes_only_these(
        self, schedules: ScheduleStore, agent: Agent, clock: FrozenClock
    ) -> None:
        of_client = await self._created(schedules, agent, clock)
        own = planned(a_schedule(agent, clock, created_by_agent=True), clock.now())
        await schedules.create(None, own, most_of_agent=1)
        with pytest.raises(FailedPrecondition):
            await schedules.create(None, replace(own, id=new_id("schedule")), most_of_agent=1)
        assert [each.id for each in await schedules.list_open(ORG, agent.id)] == [own.id]
        assert not await schedules.delete(None, ORG, of_client.id, of_agent=agent.id)
        deletion = key("DeleteSchedule")
        assert await schedules.delete(deletion, ORG, own.id, of_agent=agent.id)
        assert await schedules.delete(deletion, ORG, own.id, of_agent=agent.id), "a repeat returns the first result"
        assert await schedules.list_open(ORG, agent.id) == ()
