"""The runs of this process: begins what is claimed, ends it with its reason, takes up what a crash left behind."""

import asyncio
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import structlog
from engram_kit.clock import Clock
from engram_kit.deadline import set_remaining
from engram_kit.errors import EngramError, typed
from engram_kit.idempotency import RequestKey
from engram_kit.principal import Principal, as_principal

from engram_orchestrator.builtin.executor import BuiltinTools
from engram_orchestrator.errors import ContextWindowOverflow, LeaseLost, SystemPromptOverflow
from engram_orchestrator.llm.errors import (
    ContextOverflow,
    ProviderBadAnswer,
    ProviderError,
    ProviderPaymentRequired,
)
from engram_orchestrator.llm.registry import Providers
from engram_orchestrator.loop.answers import input_messages
from engram_orchestrator.loop.context import ContextBuilder, Gathered
from engram_orchestrator.loop.engine import Engine
from engram_orchestrator.loop.hub import EventHub
from engram_orchestrator.loop.policy import POLICIES
from engram_orchestrator.loop.rules import RulesSolver
from engram_orchestrator.loop.tiers import Patience
from engram_orchestrator.loop.toolbox import make_toolbox
from engram_orchestrator.loop.turn import CalledModel, Progress, Turn
from engram_orchestrator.model.agent_types import AGENT_TYPES, AgentTypeSpec
from engram_orchestrator.model.agents import Agent, Conversation
from engram_orchestrator.model.events import DurableBody, Failed, RunEvent, Stopped, UsageReported
from engram_orchestrator.model.runs import JournalEntry, Run, RunError, StopReason, status_of
from engram_orchestrator.ports import RecallPort
from engram_orchestrator.store.base import Claim, RunStore, StartedRun

_log = structlog.get_logger("engram.runs")

RENEWAL_SECONDS = 10.0
RECOVERY_SECONDS = 5.0

_STOPS: tuple[tuple[type[EngramError], StopReason], ...] = (
    (SystemPromptOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT),
    (ContextWindowOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW),
    (ContextOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW),
    (ProviderBadAnswer, StopReason.INVALID_LLM_RESPONSE),
    (ProviderPaymentRequired, StopReason.INSUFFICIENT_CREDITS),
    (ProviderError, StopReason.LLM_API_ERROR),
)


@dataclass(slots=True)
class _Active:
    claim: Claim
    task: asyncio.Task[None] | None = None
    cancelled: bool = False


class Conductor:
    """Carries out the runs that this process holds leases of, each in a task of its own."""

    def __init__(
        self,
        store: RunStore,
        hub: EventHub,
        engine: Engine,
        context: ContextBuilder,
        recall: RecallPort,
        models: Providers,
        builtin: BuiltinTools,
        patience: Patience,
        clock: Clock,
        owner: str,
    ) -> None:
        self.owner = owner
        self._store = store
        self._hub = hub
        self._engine = engine
        self._context = context
        self._recall = recall
        self._models = models
        self._builtin = builtin
        self._patience = patience
        self._clock = clock
        self._active: dict[str, _Active] = {}
        # Held between a claim and its beginning: to the store, a run that this process has claimed and not begun looks
        # like one that it left behind in a crash.
        self._claiming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stopping = False

    async def start(self, key: RequestKey | None, run: Run, *, reject_busy: bool) -> StartedRun:
        """Stores a run, and begins it where its conversation is idle. Raises as RunStore.start does."""
        async with self._claim_of(run.conversation_id):
            started = await self._store.start(key, run, self.owner, reject_busy=reject_busy)
            if started.claim is not None:
                self._begin(started.claim, copy_context())
            return started

    def _claim_of(self, conversation_id: str) -> asyncio.Lock:
        lock = self._claiming.get(conversation_id)
        if lock is None:
            lock = self._claiming[conversation_id] = asyncio.Lock()
        return lock

    def _begin(self, claim: Claim, context: Context) -> None:
        """Carries out a claimed run. Its task belongs to the process, not to whoever asked, nor to their deadline."""
        context.run(set_remaining, None)
        active = _Active(claim)
        self._active[claim.run.id] = active
        loop = asyncio.get_running_loop()
        active.task = loop.create_task(self._conduct(active), name=claim.run.id, context=context)

    def tell(self, events: Sequence[RunEvent]) -> None:
        """Tells the followers of a run that ended without having begun."""
        self._hub.publish(events)

    async def cancel(self, run_id: str) -> bool:
        """Stops a run of this process and waits until it is recorded; False where it is not here."""
        active = self._active.get(run_id)
        if active is None or active.task is None:
            return False
        active.cancelled = True
        active.task.cancel()
        await asyncio.wait([active.task])
        return True

    async def drop(self, agent_id: str) -> None:
        """Stops the runs of an agent that is being deleted; their leases are gone already."""
        tasks = []
        for active in list(self._active.values()):
            if active.claim.agent.id == agent_id and active.task is not None:
                active.task.cancel()
                tasks.append(active.task)
        if tasks:
            await asyncio.wait(tasks)

    async def kick(self, conversation_id: str) -> None:
        """Claims and begins the next run of a conversation, if there is one to be had."""
        async with self._claim_of(conversation_id):
            busy = any(active.claim.run.conversation_id == conversation_id for active in self._active.values())
            if self._stopping or busy:
                return
            claim = await self._store.claim_next(conversation_id, self.owner)
            if claim is not None:
                self._begin(claim, Context())

    async def recover(self) -> None:
        """For ever: takes up runs that nobody holds, such as those of this process before it was killed."""
        while True:
            try:
                for conversation_id in await self._store.claimable(self.owner):
                    await self.kick(conversation_id)
            except EngramError as error:
                _log.warning("looking for runs to take up failed", error=error.message)
            await asyncio.sleep(RECOVERY_SECONDS)

    async def renew(self) -> None:
        """For ever: puts off the expiry of the leases that this process holds."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            try:
                await self._store.renew([active.claim.lease for active in self._active.values()])
            except EngramError as error:
                _log.warning("renewing leases failed", error=error.message)

    async def stop(self) -> None:
        """Lets go of every run where it stands; the next process of this owner takes it up."""
        self._stopping = True
        tasks = [active.task for active in self._active.values() if active.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _conduct(self, active: _Active) -> None:
        run = active.claim.run
        log = _log.bind(run=run.id, agent=run.agent_id)
        waits = False
        try:
            with as_principal(Principal(run.organization_id, run.subject_id)):
                waits = await self._to_its_end(active)
        except LeaseLost:
            log.warning("another holder took the run over")
        except asyncio.CancelledError:
            log.info("the run is left where it stands")
        except Exception as error:
            # The lease lapses, and the run is taken up from its journal.
            log.exception("the run could not be recorded", error=str(error))
        finally:
            self._active.pop(run.id, None)
            self._hub.end(run.id)
        if waits:
            await self.kick(run.conversation_id)

    async def _to_its_end(self, active: _Active) -> bool:
        """Carries the run out and records how it ended; whether another waits behind it."""
        claim = active.claim
        progress = Progress(claim.run, claim.lease, self._clock.monotonic())
        turn: Turn | None = None
        error: RunError | None = None
        try:
            turn = await self._turn(claim, progress)
            reason = await self._engine.carry_out(turn)
            if reason is StopReason.NO_TOOL_CALL:
                error = RunError(
                    "PROVIDER_BAD_ANSWER", "The model called no tool; agents of this type act by tools only."
                )
        except asyncio.CancelledError:
            if not active.cancelled:
                raise
            reason = StopReason.CANCELLED
            if turn is not None:
                await self._engine.cancel(turn)
        except LeaseLost:
            raise
        except Exception as failure:
            reason, error = _failure(failure)
        return await self._finish(progress, reason, error)

    async def _turn(self, claim: Claim, progress: Progress) -> Turn:
        """Everything that the first step needs; of a run that was begun before, also what its journal holds."""
        run, agent = claim.run, claim.agent
        spec = AGENT_TYPES[agent.type]
        model = self._model(run, agent, claim.conversation, spec)
        tool_ids = tuple(tool.tool_id for tool in agent.tools if tool.tool_id is not None)
        entries: tuple[JournalEntry, ...] = ()
        if claim.taken_up:
            entries = await self._store.journal(run.id)
            progress.sequence = (await self._store.get(run.organization_id, run.id)).last_sequence
        gathered = await self._gather(claim, tool_ids)
        window = gathered.window
        if agent.message_buffer_autoclear and not entries and len(window.messages) > 1:
            window = await self._recall.replace_context(
                f"{run.id}/autoclear",
                agent.id,
                run.conversation_id,
                window.version,
                [window.messages[0].id],
                run_id=run.id,
                epoch=claim.lease.epoch,
            )
        solver = RulesSolver(agent.tool_rules)
        policy = POLICIES[spec.policy]
        return Turn(
            run=run,
            agent=agent,
            lease=claim.lease,
            progress=progress,
            spec=spec,
            policy=policy,
            model=model,
            solver=solver,
            toolbox=make_toolbox(
                agent,
                self._builtin,
                gathered.custom,
                solver,
                heartbeat=policy.injects_heartbeat,
                thinking=bool(model.settings.inner_thoughts_in_kwargs),
            ),
            window=window,
            core=gathered.core,
            journal={(entry.step_id, entry.kind, entry.ordinal): entry for entry in entries},
            pending=input_messages(run),
            notes=gathered.notes,
        )

    async def _gather(self, claim: Claim, tool_ids: tuple[str, ...]) -> Gathered:
        """A new run fails fast where an essential tier is away; one that was begun before waits for it."""

        async def gather() -> Gathered:
            return await self._context.gather(claim.agent.id, claim.run.conversation_id, tool_ids)

        return await (self._patience.with_tier(gather) if claim.taken_up else gather())

    def _model(self, run: Run, agent: Agent, conversation: Conversation, spec: AgentTypeSpec) -> CalledModel:
        """The model of a run: its own override, else the conversation's, else the agent's; settings likewise."""
        info, client = self._models.resolve(run.config.override_model or conversation.model or agent.model)
        settings = agent.model_settings.over(info.defaults)
        if conversation.model_settings is not None:
            settings = conversation.model_settings.over(settings)
        if settings.inner_thoughts_in_kwargs is None:
            settings = replace(settings, inner_thoughts_in_kwargs=spec.inner_thoughts)
        return CalledModel(info, settings, client)

    async def _finish(self, progress: Progress, reason: StopReason, error: RunError | None) -> bool:
        now = self._clock.now()
        bodies: list[DurableBody] = [Failed(error)] if error is not None else []
        bodies += [Stopped(reason, status_of(reason)), UsageReported(progress.usage, progress.concluded)]
        events = progress.durable(now, None, *bodies)
        ended = replace(
            progress.run,
            status=status_of(reason),
            stop_reason=reason,
            error=error,
            usage=progress.usage,
            step_count=progress.concluded,
            last_sequence=progress.sequence,
            completed_at=now,
            first_token_ms=progress.first_token_ms,
            total_ms=round((self._clock.monotonic() - progress.began) * 1e3),
        )
        waits = await self._store.finish(progress.lease, ended, (*progress.told, *events), progress.take_steps())
        self._hub.publish(events)
        return waits


def _failure(failure: Exception) -> tuple[StopReason, RunError]:
    known = typed(failure)
    if not isinstance(failure, EngramError):
        _log.exception("a run failed by a defect")
    stop = next((reason for kind, reason in _STOPS if isinstance(known, kind)), StopReason.ERROR)
    return stop, RunError(known.reason, known.message, dict(known.metadata))
