"""Sending to agents, following and cancelling runs."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.errors import RunEnded, RunUnderWay
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.model.approvals import ApprovalAnswer
from mnemesh_orchestrator.model.claims import StartedRun
from mnemesh_orchestrator.model.events import DurableBody, RunEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.run_config import OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.processors.chain import Processors
from mnemesh_orchestrator.runs.run_stream import RunStreamer
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base import RunStore
from mnemesh_orchestrator.store.base.leases import LeaseStore

_ALL = 1_000
_LOOK_AGAIN_SECONDS = 1.0
"""Between two looks at a run that another process was asked to cancel, where no news of it comes before."""


class RunService:
    """Turns of agents."""

    def __init__(
        self,
        store: RunStore,
        leases: LeaseStore,
        worker: RunWorker,
        follower: RunStreamer,
        models: ModelCatalog,
        clock: Clock,
        ids: IdSource,
        processors: Processors,
    ) -> None:
        self._store = store
        self._leases = leases
        self._worker = worker
        self._follower = follower
        self._models = models
        self._clock = clock
        self._ids = ids
        self._processors = processors

    async def send(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> AsyncGenerator[RunEvent, None]:
        """Stores a run and streams it to its end. A repeat under the same key or otid streams the first one again.

        Raises:
            NotFound: no such agent, or conversation of it.
            ConversationBusy: another run holds it, and the config rejects waiting.
            PendingApproval: it waits for an approval.
            ModelUnknown: the config names a model that nobody serves.
            InputRefused, ProcessorFailed: of the operator's processors. Nothing is stored.
        """
        run = self.new_run(caller, agent_id, conversation_id, messages, config, background=False)
        _, stream = await self.opened(caller, key, run)
        async with aclosing(stream):
            async for event in stream:
                yield event

    async def opened(
        self, caller: Principal, key: RequestKey | None, run: Run, answer: ApprovalAnswer | None = None
    ) -> tuple[Run, AsyncGenerator[RunEvent, None]]:
        """Stores a run; the run, or the one that this repeats, and its events to the end. Raises as `send` does."""
        # Listening begins before the run can; of a repeat the first run is another one, and is read from the store.
        subscription = self._follower.subscribe(run.id)
        try:
            started = await self._start(key, run, answer)
        except BaseException:
            subscription.close()
            raise
        alive = started.run.config.keepalive_seconds
        if started.replayed:
            subscription.close()
            again = self.follow(
                caller, started.run.id, 0, alive, replayed=True, deltas=started.run.config.stream_tokens
            )
            return started.run, again
        return started.run, self._follower.follow(started.run, subscription, fresh=True, keepalive_seconds=alive)

    async def start(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> Run:
        """Stores a run and begins it in the background. Raises as `send` does."""
        run = self.new_run(caller, agent_id, conversation_id, messages, config, background=True)
        started = await self._start(key, run)
        return started.run

    def new_run(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
        *,
        background: bool,
    ) -> Run:
        """A run that is not stored yet."""
        now = self._clock.now()
        return Run(
            id=self._ids.new("run"),
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            agent_id=agent_id,
            conversation_id=conversation_id or derive_id("conv", agent_id),
            created_at=now,
            updated_at=now,
            input=tuple(messages),
            config=config,
            background=background,
        )

    async def _start(self, key: RequestKey | None, run: Run, answer: ApprovalAnswer | None = None) -> StartedRun:
        if run.config.override_model is not None:
            await self._models.resolve(run.organization_id, run.config.override_model)
        # What a run takes up was processed when it was first sent, as was what a request repeats.
        is_new = (
            self._processors.has_input_processors and not run.takes_up and await self._store.repeated(key, run) is None
        )
        if is_new:
            run = replace(run, input=await self._processors.process_input(run))
        return await self._worker.start(key, run, reject_busy=run.config.on_busy is OnBusy.REJECT, answer=answer)

    async def follow(
        self,
        caller: Principal,
        run_id: str,
        after: int,
        keepalive_seconds: int,
        *,
        replayed: bool = False,
        deltas: bool = False,
    ) -> AsyncGenerator[RunEvent, None]:
        """The events of `attach`."""
        _, stream = await self.attach(caller, run_id, after, keepalive_seconds, replayed=replayed, deltas=deltas)
        async with aclosing(stream):
            async for event in stream:
                yield event

    async def attach(
        self,
        caller: Principal,
        run_id: str,
        after: int,
        keepalive_seconds: int,
        *,
        replayed: bool = False,
        deltas: bool = False,
    ) -> tuple[Run, AsyncGenerator[RunEvent, None]]:
        """A run, and its events behind a number to its end; with `deltas` also stored live ones.

        Raises:
            NotFound
        """
        subscription = self._follower.subscribe(run_id)
        try:
            run = await self._store.get(caller.organization_id, run_id)
        except BaseException:
            subscription.close()
            raise
        stream = self._follower.follow(
            run, subscription, after=after, replayed=replayed, deltas=deltas, keepalive_seconds=keepalive_seconds
        )
        return run, stream

    async def get(self, caller: Principal, run_id: str) -> Run:
        """A run, or NotFound."""
        return await self._store.get(caller.organization_id, run_id)

    async def list(self, caller: Principal, where: RunFilter, page: PageQuery) -> Page[Run]:
        """A page of runs by creation."""
        return await self._store.list(caller.organization_id, where, page)

    async def retry(self, caller: Principal, key: RequestKey | None, run_id: str) -> Run:
        """Takes the input of a run that failed or was cancelled up again, as a new run in the background.

        What of the input a step had committed already is not said twice. A decision that it had not carried out is.

        Raises:
            NotFound
            RunEnded: it completed.
            RunUnderWay: it has not ended.
        """
        before = await self._store.get(caller.organization_id, run_id)
        if not before.status.ended:
            raise RunUnderWay("The run has not ended.", resource_id=run_id)
        if before.status is RunStatus.COMPLETED:
            raise RunEnded("The run completed; there is nothing to take up again.", resource_id=run_id)
        messages = [replace(message, otid=None) for message in before.input]
        again = self.new_run(caller, before.agent_id, before.conversation_id, messages, before.config, background=True)
        again = replace(again, takes_up=(run_id, *before.takes_up), resumes=before.resumes)
        return (await self._start(key, again)).run

    async def cancel(self, caller: Principal, where: RunFilter, run_ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """Cancels runs by id, or every unfinished one that matches; what became of each."""
        if not run_ids:
            page = await self.list(caller, replace(where, active=True), PageQuery(_ALL, ascending=False))
            # The newest first: one that waits must not begin because the one ahead of it was cancelled.
            run_ids = [run.id for run in page.items]
        outcomes = {run_id: await self._cancel(caller, run_id) for run_id in run_ids}
        return {
            run_id: await self._cancelled_elsewhere(caller, run_id) if outcome is None else outcome
            for run_id, outcome in outcomes.items()
        }

    async def _cancel(self, caller: Principal, run_id: str) -> CancelOutcome | None:
        """What became of a run; None where another process was asked to cancel it."""
        try:
            run = await self._store.get(caller.organization_id, run_id)
        except NotFound:
            return CancelOutcome.NOT_FOUND
        if run.status is RunStatus.CREATED:
            now = self._clock.now()
            ended = replace(run, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, completed_at=now)
            bodies: tuple[DurableBody, ...] = (
                StopEvent(StopReason.CANCELLED, RunStatus.CANCELLED),
                UsageEvent(Usage(), 0),
            )
            events = [RunEvent(run.id, now, body, number) for number, body in enumerate(bodies, 1)]
            if await self._store.cancel_waiting(replace(ended, last_sequence=len(events)), events):
                self._worker.publish(events)
                return CancelOutcome.CANCELLED
        if run.status.ended:
            return CancelOutcome.ENDED_BEFORE
        if not await self._worker.cancel(run):
            asked = await self._leases.request_cancel(caller.organization_id, run_id)
            return None if asked else CancelOutcome.ENDED_BEFORE
        return await self._outcome(caller, run_id)

    async def _outcome(self, caller: Principal, run_id: str) -> CancelOutcome:
        run = await self._store.get(caller.organization_id, run_id)
        cancelled = run.stop_reason is StopReason.CANCELLED
        return CancelOutcome.CANCELLED if cancelled else CancelOutcome.ENDED_BEFORE

    async def _cancelled_elsewhere(self, caller: Principal, run_id: str) -> CancelOutcome:
        """Waits until another process has cancelled a run, or until its lease has lapsed and this one has."""
        subscription = self._follower.subscribe(run_id)
        try:
            while not (run := await self._store.get(caller.organization_id, run_id)).status.ended:
                subscription.is_stored = True
                with suppress(TimeoutError):
                    await subscription.next(_LOOK_AGAIN_SECONDS)
                await self._worker.claim_and_run(run.conversation_id)
        finally:
            subscription.close()
        return await self._outcome(caller, run_id)

    async def delete(self, caller: Principal, run_id: str) -> None:
        """Removes the record of an ended run; its messages stay. Raises NotFound, RunUnderWay."""
        await self._store.delete(caller.organization_id, run_id)
