"""The compaction of a turn's window: composes the smaller window, and puts it in place of the larger one."""

from collections.abc import Callable
from dataclasses import replace

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.compaction.compactor import summary_tokens
from mnemesh_orchestrator.compaction.modes import effective_settings
from mnemesh_orchestrator.compaction.planner import Sizes
from mnemesh_orchestrator.compaction.port import CompactionPlan, CompactionRequest, Compactor, SummaryCall
from mnemesh_orchestrator.compaction.tokens import Measured, TokenEstimator
from mnemesh_orchestrator.compaction.window_replacement import WindowReplacement
from mnemesh_orchestrator.errors import WindowMoved
from mnemesh_orchestrator.loop.context_budget import SHORT_RETURN, limit, start_of_turn, trigger
from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.loop.message_events import summary_event
from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.loop.request_assembly import Assembled, RequestAssembler
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import TurnContext, TurnState
from mnemesh_orchestrator.model.compaction import Compaction, CompactionResult, CompactionSettings
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.events import CompactionEvent, DurableBody
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry
from mnemesh_orchestrator.model.memory_access import memory_access
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.prompt.packaging import senders_of

_log = structlog.get_logger("mnemesh.loop")

_COMPACTION_EVENTS = frozenset({"compaction", "summary"})


class WindowCompactor:
    """Makes the window of a turn smaller."""

    def __init__(
        self,
        context: ContextReader,
        requests: RequestAssembler,
        compactor: Compactor,
        estimator: TokenEstimator,
        replacement: WindowReplacement,
        retry: RetryPolicy,
        clock: Clock,
        metrics: TurnMetrics,
    ) -> None:
        self._context = context
        self._requests = requests
        self._compactor = compactor
        self._estimator = estimator
        self._replacement = replacement
        self._retry = retry
        self._clock = clock
        self._metrics = metrics

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
            context: the turn.
            state: its state.
            least_gain: the tokens that have to leave; None if any gain will do.
            on_call: receives every call of a summary model.
            assembled: the next request, if it is known.
            settings: settings that replace the agent's this time.
        """
        assembled = assembled or await self._requests.assemble(context, state)
        measured = self._estimator.request(context.agent, assembled.request)
        window = state.window.with_system(assembled.system_text)
        usages: list[Usage] = []

        def report(call: SummaryCall) -> None:
            usages.append(call.usage)
            self._metrics.model_called(call.request.model, call.seconds, call.usage, call.error)
            on_call(call)

        request = self._request(context, state, window, assembled, measured, least_gain, report, settings)
        plan = await self._compactor.compact(request)
        if plan is None:
            return None
        return await self._composed(context, state, window, measured, plan, sum(usages, Usage()))

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
        short = self._estimator.messages(agent, handle, window.messages[start:], SHORT_RETURN)
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
            text_tokens=lambda text: self._estimator.text(agent, handle, text),
            request_tokens=lambda other: self._estimator.request(agent, other).total,
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

    async def _composed(
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
            created_at=self._clock.now(),
            content=(TextPart(plan.summary.window_text),),
            conversation_id=window.conversation_id,
        )
        smaller = replace(
            window,
            messages=(window.messages[0], summary, *plan.cut.kept),
            agent_message_count=window.agent_message_count + 1,  # the summary is one of the agent's messages
        )
        system_text = await self._requests.new_system_text(context, state, smaller)
        head = smaller.with_system(system_text).messages[:2]
        head_tokens = sum(self._estimator.messages(context.agent, state.model.info.handle, head))
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
        """Journals a compaction with its events, then replaces the window. Returns the window that holds then.

        Raises:
            LeaseLost: another process holds the run now.
        """
        bodies: list[DurableBody] = []
        if shows_compactions(context.run.config):
            bodies = [CompactionEvent(compaction.result), summary_event(compaction.summary)]
        now, version = self._clock.now(), compaction.base_version
        entry = JournalEntry(step_id, EntryKind.COMPACTION, now, version, compaction=compaction)
        await context.journal.record(entry, bodies)
        return await self.apply(context, compaction)

    async def apply(self, context: TurnContext, compaction: Compaction) -> ContextWindow:
        """Replaces the window with one that is journalled. Returns the window that holds then.

        If the window has changed since, because its owner edited it or an earlier attempt succeeded, it stays.
        """
        lease, conversation_id = context.lease, context.run.conversation_id
        try:
            window = await self._retry.call(
                lambda: self._replacement.apply(
                    f"{context.run.id}/{lease.epoch}/compaction/{compaction.base_version}",
                    context.agent.id,
                    conversation_id,
                    compaction,
                    lease,
                )
            )
        except WindowMoved:
            window = await self._retry.call(lambda: self._context.window(conversation_id))
        return self._context.remember(window)


def shows_compactions(config: RunConfig) -> bool:
    """Returns whether the events of a run include its compactions."""
    return config.include_compaction_events or not _COMPACTION_EVENTS.isdisjoint(config.include_events)
