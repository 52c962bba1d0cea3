"""The runs of this process: begins what is claimed, ends it with its reason, takes up what a crash left behind."""

import asyncio
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.deadline import set_remaining
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.delta_log import DeltaLog
from mnemesh_orchestrator.loop.engine import Engine
from mnemesh_orchestrator.loop.journal import settled
from mnemesh_orchestrator.loop.state import Progress, Turn
from mnemesh_orchestrator.model.approvals import ApprovalAnswer
from mnemesh_orchestrator.model.claims import Claim, StartedRun
from mnemesh_orchestrator.model.events import DurableBody, ErrorEvent, RunEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.runs import Run, RunError, RunFilter, StopReason, status_of
from mnemesh_orchestrator.runs.event_broker import EventBroker
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer
from mnemesh_orchestrator.runs.stop_reasons import explanation, failure
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.store.base import RunStore
from mnemesh_orchestrator.store.base.leases import LeaseStore

_log = structlog.get_logger("mnemesh.runs")

RECOVERY_SECONDS = 5.0
_ALL = 1_000


@dataclass(slots=True)
class _Active:
    claim: Claim
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    cancelled: bool = False
    ending: bool = False
    """How the run ended is being recorded; it is too late to cancel it."""
    lost: bool = False
    """Somebody else carries the run out, or soon may."""


class RunWorker:
    """Carries out the runs that this process holds leases of, each in a task of its own."""

    def __init__(
        self,
        store: RunStore,
        leases: LeaseStore,
        keeper: LeaseRenewer,
        hub: EventBroker,
        deltas: DeltaLog,
        engine: Engine,
        turns: TurnBuilder,
        clock: Clock,
    ) -> None:
        self._store = store
        self._leases = leases
        self._keeper = keeper
        self._hub = hub
        self._deltas = deltas
        self._engine = engine
        self._turns = turns
        self._clock = clock
        self._active: dict[str, _Active] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(
        self, key: RequestKey | None, run: Run, *, reject_busy: bool, answer: ApprovalAnswer | None = None
    ) -> StartedRun:
        """Stores a run, and begins it where its conversation is idle. Raises as RunStore.start does."""
        async with self._keeper.claiming(run.conversation_id):
            started = await self._store.start(key, run, self._keeper.owner, reject_busy=reject_busy, answer=answer)
            if started.claim is not None:
                self._begin(started.claim, copy_context())
            return started

    def _begin(self, claim: Claim, context: Context) -> None:
        """Carries out a claimed run. Its task belongs to the process, not to whoever asked, nor to their deadline."""
        if self._stopping:
            self._hub.end(claim.run.id)  # the next process of this owner takes it up
            return
        context.run(set_remaining, None)
        active = _Active(claim, cancelled=claim.cancelled)
        self._active[claim.run.id] = active
        self._keeper.keep(claim.lease, lambda: self._lose(active))
        loop = asyncio.get_running_loop()
        active.task = loop.create_task(self._conduct(active), name=claim.run.id, context=context)
        self._tasks.add(active.task)
        active.task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never runs its own last one.
        active.task.add_done_callback(lambda _: self._let_go(active))

    def _lose(self, active: _Active) -> None:
        active.lost = True
        if active.task is not None:
            active.task.cancel()

    def _let_go(self, active: _Active) -> None:
        """Carries a run out no more. Whoever follows one that is lost hears of it from the store."""
        run_id = active.claim.run.id
        self._keeper.drop(active.claim.lease)
        self._deltas.drop(run_id)
        if self._active.get(run_id) is active:
            del self._active[run_id]
            if not active.lost:
                self._hub.end(run_id)

    def tell(self, events: Sequence[RunEvent]) -> None:
        """Tells the followers of a run that ended without having begun."""
        self._hub.publish(events)

    def carries(self, run_id: str) -> bool:
        """Whether this process carries the run out."""
        return run_id in self._active

    async def cancel(self, run: Run) -> bool:
        """Stops a run that this process carries out, and waits until that is recorded; False where it does not.

        A run that nobody carries out, as after a crash, is taken up here, to be ended.
        """
        if run.id not in self._active:
            await self.claim_and_run(run.conversation_id)
        active = self._active.get(run.id)
        if active is None or active.task is None:
            return False
        self.interrupt(run.id)
        await asyncio.wait([active.task])
        return True

    def interrupt(self, run_id: str) -> None:
        """Begins to stop a run that this process carries out; one whose end is being recorded ends as it will."""
        active = self._active.get(run_id)
        if active is None or active.task is None or active.cancelled or active.ending:
            return
        active.cancelled = True
        if active.has_begun:
            active.task.cancel()

    async def ended(self, run_id: str) -> None:
        """Waits until a run is not carried out here any more."""
        active = self._active.get(run_id)
        if active is not None and active.task is not None:
            await asyncio.wait([active.task])

    async def drop(self, organization_id: str, agent_id: str) -> tuple[str, ...]:
        """Stops the runs of an agent that is being deleted, whose leases are gone already. Returns their ids."""
        tasks = []
        for active in list(self._active.values()):
            if active.claim.agent.id == agent_id and active.task is not None:
                active.task.cancel()
                tasks.append(active.task)
        if tasks:
            await asyncio.wait(tasks)
        where = RunFilter(agent_ids=(agent_id,), active=True)
        waiting = await self._store.list(organization_id, where, PageQuery(_ALL, ascending=True))
        unfinished = tuple(run.id for run in waiting.items)
        self.end_streams(unfinished)
        return unfinished

    def end_streams(self, run_ids: Sequence[str]) -> None:
        """Ends the streams of runs that were deleted."""
        for run_id in run_ids:
            self._hub.end(run_id)

    async def claim_and_run(self, conversation_id: str) -> None:
        """Claims and begins the next run of a conversation, if there is one to be had."""
        async with self._keeper.claiming(conversation_id):
            if self._stopping or self._keeper.holds(conversation_id):
                return
            claim = await self._store.claim_next(conversation_id, self._keeper.owner)
            if claim is not None:
                self._begin(claim, Context())

    async def recover(self, pause_seconds: float = RECOVERY_SECONDS) -> None:
        """For ever: takes up runs that nobody holds, such as those of this process before it was killed."""
        while True:
            try:
                for conversation_id in await self._leases.claimable(self._keeper.owner):
                    await self.claim_and_run(conversation_id)
            except MnemeshError as error:
                _log.warning("looking for runs to take up failed", error=error.message)
            await asyncio.sleep(pause_seconds)

    async def stop(self) -> None:
        """Lets go of every run where it stands; any process takes it up at once."""
        self._stopping = True
        tasks, left = list(self._tasks), [active.claim.lease for active in self._active.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for lease in left:
            try:
                await self._leases.release(lease)
            except MnemeshError as error:
                _log.warning("a lease lapses by itself", conversation=lease.conversation_id, error=error.message)

    async def _conduct(self, active: _Active) -> None:
        active.has_begun = True
        run = active.claim.run
        log = _log.bind(run=run.id, agent=run.agent_id)
        waits = False
        try:
            with as_principal(Principal(run.organization_id, run.subject_id)):
                waits = await self._to_its_end(active)
        except LeaseLost:
            active.lost = True
            log.warning("another holder took the run over")
        except asyncio.CancelledError:
            log.info("the run is left where it stands")
        except Exception as error:
            # The run is taken up from its journal, here or by whoever sees its lease lapse.
            active.lost = True
            log.exception("the run could not be recorded", error=str(error))
        finally:
            self._let_go(active)
        if waits:
            await self.start_next(run.conversation_id)

    async def start_next(self, conversation_id: str) -> None:
        """Begins the next run of a conversation; where that fails, it is found a little later."""
        try:
            await self.claim_and_run(conversation_id)
        except MnemeshError as error:
            _log.warning("the next run has to wait to be found", conversation=conversation_id, error=error.message)

    async def _to_its_end(self, active: _Active) -> bool:
        """Carries the run out and records how it ended; whether another waits behind it."""
        claim = active.claim
        progress = Progress(
            claim.run, claim.lease, self._clock.monotonic(), claim.claims, sequence=claim.run.last_sequence
        )
        reason, error = await self._carried_out(active, progress)
        active.ending = True
        return await settled(self._finish(progress, reason, error))

    async def _carried_out(self, active: _Active, progress: Progress) -> tuple[StopReason, RunError | None]:
        turn: Turn | None = None
        try:
            if not active.cancelled:
                turn = await self._turns.begin(active.claim, progress)
                reason = await self._engine.carry_out(turn)
                return reason, explanation(reason)
        except asyncio.CancelledError:
            if not active.cancelled:
                raise
        except LeaseLost:
            raise
        except Exception as error:
            return failure(error)
        return StopReason.CANCELLED, await self._cancelled(active.claim, turn, progress)

    async def _cancelled(self, claim: Claim, turn: Turn | None, progress: Progress) -> RunError | None:
        """Leaves valid history behind a run that is cancelled; what went wrong with it."""
        try:
            if turn is None and (claim.taken_up or claim.run.resumes is not None):
                turn = await self._turns.begin(claim, progress)
            if turn is not None:
                await self._engine.cancel(turn)
        except LeaseLost:
            raise
        except MnemeshError as error:
            return failure(error)[1]
        return None

    async def _finish(self, progress: Progress, reason: StopReason, error: RunError | None) -> bool:
        now = self._clock.now()
        bodies: list[DurableBody] = [ErrorEvent(error)] if error is not None else []
        bodies += [StopEvent(reason, status_of(reason)), UsageEvent(progress.usage, progress.concluded)]
        events = progress.durable(now, None, *bodies)
        ended = replace(
            progress.run,
            status=status_of(reason),
            stop_reason=reason,
            error=error,
            usage=progress.usage,
            step_count=progress.concluded,
            last_sequence=progress.sequence + len(events),
            completed_at=now,
            first_token_ms=progress.first_token_ms,
            total_ms=round((self._clock.monotonic() - progress.began) * 1e3),
        )
        await self._deltas.close(ended.id)
        approval = progress.approval if reason is StopReason.REQUIRES_APPROVAL else None
        told = (*progress.told, *events)
        waits = await self._store.finish(
            progress.lease, ended, told, progress.steps, progress.traces, approval, progress.corrections
        )
        self._hub.publish(events)
        return waits
