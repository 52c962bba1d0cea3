"""Keeps requests within the model's window: measures them, has the window made smaller, puts the new one in place."""

from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.compaction.compactor import LEAST_GAIN, summary_tokens
from mnemesh_orchestrator.compaction.modes import effective, trigger_ratio, trigger_tokens
from mnemesh_orchestrator.compaction.planner import Sizes, turn_start
from mnemesh_orchestrator.compaction.port import CompactionPlan, CompactionRequest, Compactor
from mnemesh_orchestrator.compaction.token_estimator import Measured, TokenEstimator
from mnemesh_orchestrator.compaction.window_replacement import WindowReplacement
from mnemesh_orchestrator.errors import ContextWindowOverflow, LeaseLost, SystemPromptOverflow, WindowMoved
from mnemesh_orchestrator.llm.errors import ContextOverflow
from mnemesh_orchestrator.loop.context_builder import Assembled, ContextBuilder, with_system
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.loop.message_events import shown_summary
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import Answered, Turn
from mnemesh_orchestrator.model.approvals import open_request
from mnemesh_orchestrator.model.compaction import Compaction, CompactionResult, CompactionSettings
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.events import CompactionEvent, DurableBody
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry
from mnemesh_orchestrator.model.runs import StopReason

_log = structlog.get_logger("mnemesh.loop")

MAX_COMPACTIONS: Final = 3
_SHORT_RETURN: Final = 600
"""Characters that are left of a return of the current turn where the turn alone does not fit."""
_AFTER_REFUSAL: Final = 0.75
"""What a request may take of the one that the provider refused."""
_WORTHWHILE: Final = 0.01
"""Of the limit: what a compaction must take away where the request would fit as it is."""
_KEPT_CORRECTIONS: Final = 8
"""Models of one agent whose corrections are stored: those that it used last."""
_TELLING: Final = frozenset({"compaction", "summary"})


class ContextBudget:
    """Between what a turn would ask and what its model takes."""

    def __init__(
        self,
        context: ContextBuilder,
        compactor: Compactor,
        gauge: TokenEstimator,
        recorder: JournalWriter,
        swap: WindowReplacement,
        patience: RetryPolicy,
        clock: Clock,
    ) -> None:
        self._context = context
        self._compactor = compactor
        self._gauge = gauge
        self._recorder = recorder
        self._swap = swap
        self._patience = patience
        self._clock = clock

    async def assemble(self, turn: Turn, step_id: str) -> Assembled:
        """The request of the next step, within the model's window.

        Raises:
            ContextWindowOverflow, SystemPromptOverflow: it does not fit, and nothing more can be taken away.
        """
        attempt = 0
        while True:
            assembled = await self._context.assemble(turn)
            measured = self._measure(turn, assembled)
            fits = measured.total <= _limit(turn)
            if fits and (attempt or turn.policy.compacts_late or measured.total < _trigger(turn)):
                return assembled
            _require_room(turn, measured)
            compaction = None
            if attempt < MAX_COMPACTIONS:
                compaction = await self._compose(turn, assembled, measured, _least_gain(turn, fits=fits))
            if compaction is None:
                return assembled if fits else self._squeezed(turn, assembled, measured)
            await self._put(turn, step_id, compaction)
            attempt += 1

    def learn(self, turn: Turn, reported: int | None) -> None:
        """Takes in what the provider counted of the request that was measured last."""
        agent, handle = turn.agent, turn.model.info.handle
        learnt = self._gauge.learn(agent, handle, turn.estimate, reported)
        if learnt is not None:
            before = {item.model: item for item in turn.progress.corrections or agent.corrections}
            before.pop(handle, None)
            turn.progress.corrections = (*before.values(), learnt)[-_KEPT_CORRECTIONS:]

    def refused(self, turn: Turn, error: ContextOverflow) -> None:
        """The provider says that a request is too long: the next ones stay well below it."""
        tokens, limit = (_figure(error, name) for name in ("tokens", "limit"))
        share = _AFTER_REFUSAL
        if tokens and limit:
            self.learn(turn, tokens)
            share = min(share, 0.9 * limit / tokens)
        turn.ceiling = int(self._gauge.corrected(turn.agent, turn.model.info.handle, turn.estimate) * share)
        _log.warning("the provider refuses a request as too long", run=turn.run.id, below=turn.ceiling)

    def is_due(self, turn: Turn, answered: Answered, stop: StopReason | None) -> bool:
        """Whether the window is to be made smaller behind this step, by what the provider counted.

        Where it is, the answer is journalled first, so that a crash in between knows of it.
        """
        # A step that was asked more than once has the sum in its usage.
        reported = turn.reported or answered.answer.usage.prompt_tokens
        if reported is None or reported < _trigger(turn) or (stop is None and turn.policy.compacts_late):
            return False
        known = (entry.compaction for entry in turn.journal.values() if entry.step_id == answered.step.id)
        return not any(compaction is not None and compaction.after_step for compaction in known)

    async def after_step(self, turn: Turn, step_id: str) -> None:
        """Makes the window smaller behind a step. What goes wrong is left to the next request.

        Raises:
            LeaseLost: somebody else carries the run out now.
        """
        try:
            compaction = await self.compose(turn, int(turn.model.prompt_limit * _WORTHWHILE))
            if compaction is not None:
                await self._put(turn, step_id, replace(compaction, after_step=True))
        except LeaseLost:
            raise
        except MnemeshError as error:
            _log.warning("no compaction behind the step", run=turn.run.id, error=error.message)

    async def resume(self, turn: Turn) -> None:
        """Puts the window in place that a compaction had journalled when the run was cut off."""
        for entry in turn.journal.values():
            if entry.compaction is not None and entry.compaction.base_version == turn.window.version:
                await self._replace(turn, entry.compaction)
                return

    async def compose(
        self, turn: Turn, least_gain: int | None, settings: CompactionSettings | None = None
    ) -> Compaction | None:
        """The smaller window, which is not stored yet; None where nothing can leave, or too little.

        `settings` go before the agent's for once. Models may be asked.
        """
        assembled = await self._context.assemble(turn)
        return await self._compose(turn, assembled, self._measure(turn, assembled), least_gain, settings)

    def _measure(self, turn: Turn, assembled: Assembled) -> Measured:
        measured = self._gauge.request(turn.agent, assembled.request)
        turn.estimate = measured.estimate
        return measured

    async def _compose(
        self,
        turn: Turn,
        assembled: Assembled,
        measured: Measured,
        least_gain: int | None,
        settings: CompactionSettings | None = None,
    ) -> Compaction | None:
        agent, handle = turn.agent, turn.model.info.handle
        window = with_system(turn.window, assembled.system_text)
        settings = effective(agent.compaction_settings, settings)
        start, count = _turn_start(turn), len(window.messages)
        short = self._gauge.messages(agent, handle, window.messages[start:], _SHORT_RETURN)
        occasion = CompactionRequest(
            organization_id=agent.organization_id,
            settings=settings,
            request=assembled.request,
            messages=window.messages,
            current=start,
            sizes=Sizes(
                messages=measured.messages[:count],
                clipped=[*measured.messages[:start], *short],
                fixed=measured.tools + sum(measured.messages[count:]),
                summary=summary_tokens(settings.clip_chars, turn.model.prompt_limit),
                trigger=_trigger(turn, settings),
                limit=_limit(turn),
            ),
            client=turn.model.client,
            tokens=lambda text: self._gauge.text(agent, handle, text),
            measure=lambda request: self._gauge.request(agent, request).total,
            agent_id=agent.id,
            conversation_id=window.conversation_id,
            least_gain=least_gain,
        )
        shrunk = await self._compactor.compact(occasion)
        return None if shrunk is None else await self._composed(turn, window, measured, shrunk)

    async def _composed(
        self, turn: Turn, window: ContextWindow, measured: Measured, shrunk: CompactionPlan
    ) -> Compaction:
        summary = Message(
            id=derive_id("message", window.conversation_id, "summary", str(window.version)),
            role=Role.SUMMARY,
            created_at=self._clock.now(),
            content=(TextPart(shrunk.written.text),),
            conversation_id=window.conversation_id,
        )
        # The summary is one of the agent's messages by then.
        smaller = replace(
            window,
            messages=(window.messages[0], summary, *shrunk.plan.kept),
            agent_message_count=window.agent_message_count + 1,
        )
        system_text = await self._context.system_anew(turn, smaller)
        head = with_system(smaller, system_text).messages[:2]
        now = sum(self._gauge.messages(turn.agent, turn.model.info.handle, head))
        after = measured.total - measured.messages[0] - shrunk.plan.evicted_tokens + now
        _log.info("compacted", run=turn.run.id, by=shrunk.by, tokens_before=measured.total, tokens_after=after)
        return Compaction(
            base_version=window.version,
            message_ids=tuple(message.id for message in smaller.messages),
            summary=summary,
            system_text=system_text,
            result=CompactionResult(
                summary=shrunk.written.summary,
                summary_message_id=summary.id,
                messages_before=len(window.messages),
                messages_after=len(smaller.messages),
                tokens_before=measured.total,
                tokens_after=after,
            ),
            commits=shrunk.written.commits,
        )

    async def _put(self, turn: Turn, step_id: str, compaction: Compaction) -> None:
        """Journals a compaction with what clients are told of it, then replaces the window."""
        bodies: list[DurableBody] = []
        config = turn.run.config
        if config.include_compaction_events or _TELLING.intersection(config.include_events):
            bodies = [CompactionEvent(compaction.result), shown_summary(compaction.summary)]
        now, version = self._clock.now(), compaction.base_version
        entry = JournalEntry(step_id, EntryKind.COMPACTION, now, version, compaction=compaction)
        await self._recorder.record(turn, step_id, entry, bodies)
        await self._replace(turn, compaction)

    async def _replace(self, turn: Turn, compaction: Compaction) -> None:
        lease, conversation_id = turn.lease, turn.run.conversation_id
        try:
            window = await self._patience.call(
                lambda: self._swap.put(
                    f"{turn.run.id}/{lease.epoch}/compaction/{compaction.base_version}",
                    turn.agent.id,
                    conversation_id,
                    compaction,
                    turn.run.id,
                    lease.epoch,
                )
            )
        except WindowMoved:
            # The owner changed it meanwhile, or a holder before this one got through: what stands now counts.
            window = await self._patience.call(lambda: self._context.window(conversation_id))
        turn.window = self._context.remember(window)

    def _squeezed(self, turn: Turn, assembled: Assembled, measured: Measured) -> Assembled:
        """The request with the oldest returns of the current turn cut short, as many as it takes."""
        messages, total = list(assembled.request.messages), measured.total
        for place in range(_turn_start(turn), len(turn.window.messages)):
            if total <= _limit(turn):
                break
            messages[place] = _cut_short(messages[place])
            cut = self._gauge.messages(turn.agent, turn.model.info.handle, messages[place : place + 1])
            total += cut[0] - measured.messages[place]
        # What the provider alone finds too long is asked all the same; it may take it by now.
        if total > turn.model.prompt_limit:
            raise _overflow(total, turn.model.prompt_limit)
        return replace(assembled, request=replace(assembled.request, messages=tuple(messages)))


def _limit(turn: Turn) -> int:
    """The tokens that the next request may take."""
    return turn.model.prompt_limit if turn.ceiling is None else min(turn.model.prompt_limit, turn.ceiling)


def _trigger(turn: Turn, settings: CompactionSettings | None = None) -> int:
    """The tokens that start a compaction: the ratio, of the window less the answer and the margin."""
    return trigger_tokens(trigger_ratio(settings or turn.agent.compaction_settings), _limit(turn))


def _least_gain(turn: Turn, *, fits: bool) -> int | None:
    if turn.ceiling is not None:
        return None
    return int(turn.model.prompt_limit * _WORTHWHILE) if fits else LEAST_GAIN


def _turn_start(turn: Turn) -> int:
    runs = {turn.run.id, *turn.run.takes_up}
    if turn.run.resumes is not None and (asking := turn.run.resumes.asked.message.run_id) is not None:
        runs.add(asking)  # an answer to an approval goes on with the turn that asked for it
    if (waiting := open_request(turn.window.messages)) is not None and waiting.caller.run_id is not None:
        runs.add(waiting.caller.run_id)
    return turn_start(turn.window.messages, runs)


def _require_room(turn: Turn, measured: Measured) -> None:
    """Refuses what no compaction can help: a system prompt or an input that alone does not fit."""
    limit, count = turn.model.prompt_limit, len(turn.window.messages)
    fixed = measured.tools + measured.messages[0]
    if fixed > limit:
        raise SystemPromptOverflow(
            f"The system prompt and tools take about {fixed} tokens; the model's window leaves {limit}.",
            tokens=str(fixed),
            limit=str(limit),
        )
    least = fixed + sum(measured.messages[count:])
    if least > limit:
        raise _overflow(least, limit)


def _overflow(tokens: int, limit: int) -> ContextWindowOverflow:
    return ContextWindowOverflow(
        f"The next request would take about {tokens} tokens; the model's window leaves {limit}, and nothing more can "
        "be taken away. Send less at once, or give the agent a larger context_window.",
        tokens=str(tokens),
        limit=str(limit),
    )


def _cut_short(message: Message) -> Message:
    """With the text of its returns cut; the message itself where none is long."""
    returns = tuple(
        item.with_text(f"{item.text[:_SHORT_RETURN]}… [{left} more characters are left out of this request]")
        if (left := len(item.text) - _SHORT_RETURN) > 0
        else item
        for item in message.tool_returns
    )
    return replace(message, tool_returns=returns) if returns else message


def _figure(error: ContextOverflow, name: str) -> int:
    text = error.metadata.get(name, "")
    return int(text) if text.isdigit() else 0
