"""Compaction of the window of an agent, before a step, within a turn and on request."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from mnemesh_kit.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    MnemeshError,
    NotFound,
    RequestIdReused,
    ResourceExhausted,
    Unavailable,
)
from mnemesh_kit.ids import derive_id
from mnemesh_kit.time import Clock
from mnemesh_kit.tracing import current_trace_id
from mnemesh_types.agents import CompactionResult, CompactionSettings, RunError
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.compaction.compactor import Compactor, summary_tokens
from mnemesh_orchestrator.compaction.planner import (
    CompactionPlan,
    CompactionRequest,
    Measured,
    Sizes,
    SummaryCall,
    TokenEstimator,
    effective_settings,
)
from mnemesh_orchestrator.errors import LeaseLost, WindowMoved
from mnemesh_orchestrator.loop.request_assembly import (
    SHORT_RETURN,
    Assembled,
    RequestAssembler,
    gain_worth_it,
    limit,
    start_of_turn,
    trigger,
)
from mnemesh_orchestrator.loop.rules import failure
from mnemesh_orchestrator.loop.services import ContextReader, RecallWrites, RetryPolicy, TurnMetrics
from mnemesh_orchestrator.loop.state import StepState, Turn, TurnContext, TurnState
from mnemesh_orchestrator.loop.step_messages import summary_event
from mnemesh_orchestrator.model.agents import Compaction
from mnemesh_orchestrator.model.conversations import ContextWindow
from mnemesh_orchestrator.model.core_memory import memory_access
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.events import CompactionEvent, DurableBody, EntryKind, JournalEntry, Lease
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.model.runs import COMPACTION, Step, StepStatus
from mnemesh_orchestrator.prompt.assembly import senders_of

_log = structlog.get_logger("mnemesh.compaction")

_MEMORY_INDEX: Final = re.compile(r"memories\[(\d+)\]")
_MAX_MEMORIES: Final = 100
"""The maximum number of memories per window."""

Memories = tuple[EpisodeCommit, ...]

_COMPACTION_EVENTS = frozenset({"compaction", "summary"})


@dataclass(frozen=True, eq=False)
class WindowReplacement:
    """Applies compactions: stores the window and its memories in one transaction of recall.

    A repeat has no further effect, even after a crash, because the window has a new version by then.
    """

    recall: RecallClient
    writes: RecallWrites

    async def apply(
        self, request_id: str, agent_id: str, conversation_id: str, compaction: Compaction, lease: Lease
    ) -> ContextWindow:
        """Returns the new window.

        A memory that recall refuses permanently is left out; the window is replaced nevertheless.

        Raises:
            WindowMoved, LeaseLost: as ReplaceContext of recall. No memory is stored.
            Unavailable, DeadlineExceeded: recall cannot be reached.
        """
        memories = compaction.commits[:_MAX_MEMORIES]

        async def replace(epoch: int) -> ContextWindow:
            return await self.recall.replace_context(
                request_id,
                agent_id,
                conversation_id,
                compaction.base_version,
                compaction.message_ids,
                (compaction.summary,),
                system_text=compaction.system_text,
                run_id=lease.run_id,
                epoch=epoch,
                memories=memories,
            )

        while True:
            try:
                return await self.writes.write(lease, replace)
            except (Unavailable, DeadlineExceeded, ResourceExhausted, Aborted, RequestIdReused):
                raise
            except MnemeshError as error:
                if not memories:
                    raise
                memories = _without_refused(memories, error)


def _without_refused(memories: Memories, error: MnemeshError) -> Memories:
    """Returns the memories without those that recall refuses, or with less in them."""
    if isinstance(error, FailedPrecondition | NotFound):
        # Another author closed or erased a fact since the model saw it.
        fact_id = error.metadata.get("fact_id") or error.metadata.get("resource_id", "")
        smaller = tuple(memory.without(fact_id) for memory in memories)
        if smaller != memories:
            return smaller
    match = _MEMORY_INDEX.match(error.field or "")
    index = int(match[1]) if match else None
    _log.warning("episodes_refused", count=len(memories) if index is None else 1, error=error.message)
    return () if index is None else (*memories[:index], *memories[index + 1 :])


@dataclass(frozen=True, eq=False)
class WindowCompactor:
    """Makes the window of a turn smaller."""

    context: ContextReader
    requests: RequestAssembler
    compactor: Compactor
    estimator: TokenEstimator
    replacement: WindowReplacement
    retry: RetryPolicy
    clock: Clock
    metrics: TurnMetrics

    async def compose(
        self,
        context: TurnContext,
        state: TurnState,
        least_gain: int | None,
        on_call: Callable[[SummaryCall], None],
        *,
        assembled: Assembled | None = None,
        settings: CompactionSettings | None = None,
    ) -> Compaction | None:
        """Returns a smaller window, which is not stored yet; None if nothing can leave, or too little.

        Models may be called.

        Args:
            least_gain: the tokens that have to leave; None if any gain will do.
            on_call: receives every call of a summary model.
            assembled: the next request, if it is known.
            settings: settings that replace the agent's this time.
        """
        assembled = assembled or await self.requests.assemble(context, state)
        measured = self.estimator.request(context.agent, assembled.request)
        window = state.window.with_system(assembled.system_text)
        usages: list[Usage] = []

        def report(call: SummaryCall) -> None:
            usages.append(call.usage)
            self.metrics.model_called(call.request.model, call.seconds, call.usage, call.error)
            on_call(call)

        request = self._request(context, state, window, assembled, measured, least_gain, report, settings)
        plan = await self.compactor.compact(request)
        if plan is None:
            return None
        return await self._compose(context, state, window, measured, plan, sum(usages, Usage()))

    def _request(
        self,
        context: TurnContext,
        state: TurnState,
        window: ContextWindow,
        assembled: Assembled,
        measured: Measured,
        least_gain: int | None,
        on_call: Callable[[SummaryCall], None],
        settings: CompactionSettings | None,
    ) -> CompactionRequest:
        agent, handle = context.agent, state.model.info.handle
        settings = effective_settings(agent.compaction_settings, settings)
        start, count = start_of_turn(context, state), len(window.messages)
        short = self.estimator.messages(agent, handle, window.messages[start:], SHORT_RETURN)
        return CompactionRequest(
            organization_id=agent.organization_id,
            settings=settings,
            llm_request=assembled.request,
            messages=window.messages,
            turn_start=start,
            sizes=Sizes(
                messages=measured.messages[:count],
                clipped=[*measured.messages[:start], *short],
                fixed=measured.tools + sum(measured.messages[count:]),
                summary=summary_tokens(settings.clip_chars, state.model.prompt_limit),
                trigger=trigger(context, state, settings),
                limit=limit(state),
            ),
            client=state.model.client,
            text_tokens=lambda text: self.estimator.text(agent, handle, text),
            request_tokens=lambda other: self.estimator.request(agent, other).total,
            agent_id=agent.id,
            conversation_id=window.conversation_id,
            on_call=on_call,
            min_gain=least_gain,
            memory_access=memory_access(
                agent.id,
                settings.memory_scope,
                agent.memory_extraction,
                conversation_id=window.conversation_id,
                senders=senders_of(window.messages),
                group_id=context.run.group_id,
            ),
        )

    async def _compose(
        self,
        context: TurnContext,
        state: TurnState,
        window: ContextWindow,
        measured: Measured,
        plan: CompactionPlan,
        usage: Usage,
    ) -> Compaction:
        summary = Message(
            id=derive_id("message", window.conversation_id, "summary", str(window.version)),
            role=Role.SUMMARY,
            created_at=self.clock.now(),
            content=(TextPart(plan.summary.window_text),),
            conversation_id=window.conversation_id,
        )
        smaller = replace(
            window,
            messages=(window.messages[0], summary, *plan.cut.kept),
            agent_message_count=window.agent_message_count + 1,  # the summary is one of the agent's messages
        )
        system_text = await self.requests.new_system_text(context, state, smaller)
        head = smaller.with_system(system_text).messages[:2]
        head_tokens = sum(self.estimator.messages(context.agent, state.model.info.handle, head))
        after = measured.total - measured.messages[0] - plan.cut.evicted_tokens + head_tokens
        _log.info(
            "window_compacted", run_id=context.run.id, mode=plan.mode, tokens_before=measured.total, tokens_after=after
        )
        return Compaction(
            base_version=window.version,
            message_ids=tuple(message.id for message in smaller.messages),
            summary=summary,
            system_text=system_text,
            result=CompactionResult(
                summary=plan.summary.text,
                summary_message_id=summary.id,
                messages_before=len(window.messages),
                messages_after=len(smaller.messages),
                tokens_before=measured.total,
                tokens_after=after,
                usage=usage,
            ),
            commits=plan.summary.commits,
        )

    async def journal_and_apply(self, context: TurnContext, step_id: str, compaction: Compaction) -> ContextWindow:
        """Journals a compaction with its events, then replaces the window. Returns the window that holds then."""
        bodies: list[DurableBody] = []
        if shows_compactions(context.run.config):
            bodies = [CompactionEvent(compaction.result), summary_event(compaction.summary)]
        now, version = self.clock.now(), compaction.base_version
        entry = JournalEntry(step_id, EntryKind.COMPACTION, now, version, compaction=compaction)
        await context.journal.record(entry, bodies)
        return await self.apply(context, compaction)

    async def apply(self, context: TurnContext, compaction: Compaction) -> ContextWindow:
        """Replaces the window with one that is journalled. Returns the window that holds then.

        If the window has changed since, because its owner edited it or an earlier attempt succeeded, it stays.
        """
        lease, conversation_id = context.lease, context.run.conversation_id
        try:
            window = await self.retry.call(
                lambda: self.replacement.apply(
                    f"{context.run.id}/{lease.epoch}/compaction/{compaction.base_version}",
                    context.agent.id,
                    conversation_id,
                    compaction,
                    lease,
                )
            )
        except WindowMoved:
            window = await self.retry.call(lambda: self.context.window(conversation_id))
        return self.context.remember(window)


def shows_compactions(config: RunConfig) -> bool:
    """Returns whether the events of a run include its compactions."""
    return config.include_compaction_events or not _COMPACTION_EVENTS.isdisjoint(config.include_events)


def summary_step(context: TurnContext, state: TurnState, call: SummaryCall, now: datetime) -> Step:
    """Returns the record of the newest call of a summary model. Its number is that of the loop's step."""
    model = call.request.model
    status, error = _outcome(call.error)
    return Step(
        id=derive_id("step", context.run.id, COMPACTION, str(context.claims), str(state.summary_calls)),
        run_id=context.run.id,
        agent_id=context.agent.id,
        conversation_id=context.run.conversation_id,
        number=state.step_number,
        model=model.handle,
        provider=model.provider,
        endpoint=model.endpoint,
        context_window=call.request.settings.context_window or model.context_window,
        created_at=now - timedelta(seconds=call.seconds),
        status=status,
        usage=call.usage,
        error=error,
        model_ms=round(call.seconds * 1e3),
        total_ms=round(call.seconds * 1e3),
        completed_at=now,
        trace_id=current_trace_id(),
        origin=COMPACTION,
    )


def _outcome(error: BaseException | None) -> tuple[StepStatus, RunError | None]:
    if error is None:
        return StepStatus.SUCCESS, None
    if isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception):
        return StepStatus.CANCELLED, None
    return StepStatus.FAILED, failure(error)[1]


@dataclass(frozen=True, eq=False)
class TurnCompaction:
    """Compacts the window of a turn. Each call of a summary model is recorded as a step of the run."""

    compactor: WindowCompactor
    clock: Clock

    async def finish(self, turn: Turn) -> None:
        """Applies a compaction that was journalled and not applied before a restart."""
        for entry in turn.context.journal.entries.values():
            compaction = entry.compaction
            if compaction is not None and compaction.base_version == turn.state.window.version:
                turn.state.window = await self.compactor.apply(turn.context, compaction)
                return

    async def before_request(self, turn: Turn, step: StepState, assembled: Assembled, least_gain: int | None) -> bool:
        """Compacts the window before the next request. Returns False if nothing can leave, or too little.

        Args:
            step: the step that sends the request.
            least_gain: the tokens that have to leave; None if any gain will do.
        """
        context, state = turn.context, turn.state
        compaction = await self.compactor.compose(context, state, least_gain, self._recorder(turn), assembled=assembled)
        if compaction is None:
            return False
        state.window = await self.compactor.journal_and_apply(context, step.id, compaction)
        return True

    async def after_step(self, turn: Turn, step: StepState) -> None:
        """Compacts the window after a step. If that fails, the next request tries again."""
        context, state = turn.context, turn.state
        try:
            compaction = await self.compactor.compose(context, state, gain_worth_it(state), self._recorder(turn))
            if compaction is not None:
                following = replace(compaction, after_step=True)
                state.window = await self.compactor.journal_and_apply(context, step.id, following)
        except LeaseLost:
            raise
        except MnemeshError as error:
            _log.warning("compaction_failed", run_id=context.run.id, error=error.message)

    async def after_run(self, turn: Turn) -> None:
        """Compacts the window of a turn whose end is stored. If that fails, the next turn compacts."""
        context, state = turn.context, turn.state
        try:
            compaction = await self.compactor.compose(context, state, gain_worth_it(state), self._recorder(turn))
            await context.journal.store_steps()
            if compaction is not None:
                await self.compactor.apply(context, compaction)
        except LeaseLost:
            raise
        except MnemeshError as error:
            _log.warning("compaction_failed", error=error.message)

    def _recorder(self, turn: Turn) -> Callable[[SummaryCall], None]:
        """Returns a function that records a call of a summary model as a step of the run."""

        def record(call: SummaryCall) -> None:
            context, state = turn.context, turn.state
            state.count_summary_call(call.usage)
            step = summary_step(context, state, call, self.clock.now())
            context.journal.add_step(step)
            context.journal.add_trace(
                step.id, call.request_body, call.response_body, step.model_ms or 0, is_shared=False
            )

        return record
