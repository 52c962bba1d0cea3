"""Cancellations of runs: those that wait, those that this process executes, and those of other processes."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.principal import Principal
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.events import DurableBody, RunEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.runs.input_recorder import InputRecorder
from mnemesh_orchestrator.runs.run_stream import RunStreamer
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base import RunStore
from mnemesh_orchestrator.store.base.leases import LeaseStore

_MAX_RUNS: Final = 1_000
_POLL_SECONDS: Final = 1.0
"""The time between two reads of a run that another process is to cancel, if no event of it arrives earlier."""


class RunCancellations:
    """Cancels runs, and has their inputs recorded."""

    def __init__(
        self,
        store: RunStore,
        leases: LeaseStore,
        worker: RunWorker,
        streamer: RunStreamer,
        inputs: InputRecorder,
        clock: Clock,
    ) -> None:
        self._store = store
        self._leases = leases
        self._worker = worker
        self._streamer = streamer
        self._inputs = inputs
        self._clock = clock

    async def cancel(self, caller: Principal, filter_: RunFilter, run_ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """Cancels runs by id, or without ids all unfinished runs of a filter. Returns the outcomes by run."""
        if run_ids:
            return await self._cancel_all(caller, run_ids, were_active=False)
        page = await self._store.list(
            caller.organization_id, replace(filter_, active=True), PageQuery(_MAX_RUNS, ascending=False)
        )
        # Newest first, so that a waiting run does not start because the run before it was cancelled. The turns in a run
        # of a group end with it; if one ended before, the next agent would begin its turn.
        groups = {run.id for run in page.items if run.plan is not None}
        turns = [run.id for run in page.items if any(waiting.run_id in groups for waiting in run.lineage.ancestors)]
        others = [run.id for run in page.items if run.id not in turns]
        outcomes = await self._cancel_all(caller, others, were_active=True)
        return outcomes | await self._cancel_all(caller, turns, were_active=True)

    async def _cancel_all(
        self, caller: Principal, run_ids: Sequence[str], *, were_active: bool
    ) -> dict[str, CancelOutcome]:
        unrecorded: list[Run] = []
        outcomes = {
            run_id: await self._cancel(caller, run_id, unrecorded, was_active=were_active) for run_id in run_ids
        }
        if unrecorded:
            await self._inputs.record_missing()
        return {
            run_id: await self._await_cancellation(caller, run_id) if outcome is None else outcome
            for run_id, outcome in outcomes.items()
        }

    async def cancel_unbegun(self, run: Run) -> bool:
        """Cancels a run that has not begun, and has its input recorded. Returns False if it has begun or ended."""
        ended = await self._end_unbegun(run)
        if ended is None:
            return False
        await self._inputs.record_missing()
        return True

    async def _end_unbegun(self, run: Run) -> Run | None:
        """Stores the end of a run that has not begun, and returns the run as it ended; None if it has begun."""
        now = self._clock.now()
        ended = replace(run, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, completed_at=now)
        bodies: tuple[DurableBody, ...] = (
            StopEvent(StopReason.CANCELLED, RunStatus.CANCELLED),
            UsageEvent(Usage(), 0),
        )
        events = [RunEvent(run.id, now, body, number) for number, body in enumerate(bodies, run.last_sequence + 1)]
        ended = replace(ended, last_sequence=run.last_sequence + len(events), input_unrecorded=True)
        if not await self._store.cancel_waiting(ended, events):
            return None
        self._worker.end_unbegun(ended, events)
        return ended

    async def _cancel(
        self, caller: Principal, run_id: str, unrecorded: list[Run], *, was_active: bool
    ) -> CancelOutcome | None:
        """Cancels a run and returns the outcome, or None if another process is to cancel it.

        Adds a run that has not begun to `unrecorded`. A run that `was_active` can have been cancelled meanwhile, with
        the run that waits for it.
        """
        try:
            run = await self._store.get(caller.organization_id, run_id)
        except NotFound:
            return CancelOutcome.NOT_FOUND
        if run.status is RunStatus.CREATED and (ended := await self._end_unbegun(run)) is not None:
            unrecorded.append(ended)
            return CancelOutcome.CANCELLED
        if run.status.ended:
            return await self._outcome(caller, run_id) if was_active else CancelOutcome.ENDED_BEFORE
        if not await self._worker.cancel(run):
            asked = await self._leases.request_cancel(caller.organization_id, run_id)
            return None if asked else CancelOutcome.ENDED_BEFORE
        return await self._outcome(caller, run_id)

    async def _outcome(self, caller: Principal, run_id: str) -> CancelOutcome:
        run = await self._store.get(caller.organization_id, run_id)
        cancelled = run.stop_reason is StopReason.CANCELLED
        return CancelOutcome.CANCELLED if cancelled else CancelOutcome.ENDED_BEFORE

    async def _await_cancellation(self, caller: Principal, run_id: str) -> CancelOutcome:
        """Waits until another process has cancelled a run, or until its lease has expired and this process has."""
        subscription = self._streamer.subscribe(run_id)
        try:
            while not (run := await self._store.get(caller.organization_id, run_id)).status.ended:
                subscription.is_stored = True
                with suppress(TimeoutError):
                    await subscription.next(_POLL_SECONDS)
                await self._worker.claim_and_run(run.conversation_id)
        finally:
            subscription.close()
        return await self._outcome(caller, run_id)
