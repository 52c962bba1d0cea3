"""Makes windows smaller: chooses what leaves, has it summarized, and tries the fallback modes on failure."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock

from mnemesh_orchestrator.compaction.episodic import EpisodicSummarizer
from mnemesh_orchestrator.compaction.modes import DEFAULT_CLIP_CHARS, DEFAULT_SHARE, Mode, chain, mode_of
from mnemesh_orchestrator.compaction.planner import Plan, is_crowded, within_turn
from mnemesh_orchestrator.compaction.port import (
    CompactionPlan,
    CompactionRequest,
    ModelCatalog,
    Summarizer,
    Summary,
    SummaryFailed,
    SummaryRequest,
)
from mnemesh_orchestrator.compaction.summarizers import CALL_SECONDS, SelfSummarizer, TranscriptSummarizer
from mnemesh_orchestrator.compaction.transcript import CLIPPED, SUMMARY_NOTE, clipped, digest
from mnemesh_orchestrator.ports.episodes import EpisodesPort
from mnemesh_orchestrator.ports.recall import RecallPort

_log = structlog.get_logger("mnemesh.compaction")

WHOLE_SECONDS: Final = 300.0
_NOTE_TOKENS: Final = 80
"""The tokens that the summary message costs in addition to its text."""
LEAST_GAIN: Final = 2 * _NOTE_TOKENS
"""Fewer tokens than this are not worth a summary, which costs some itself."""
_DIGEST: Final = "digest"


@dataclass(frozen=True, slots=True)
class _Chosen:
    plan: Plan
    tokens: int
    """The size limits of a summary."""


class ModelCompactor:
    """A Compactor that calls models within a time limit, and finally uses excerpts.

    It raises no errors of its own: if every model of the chain fails, the summary consists of excerpts.
    """

    def __init__(self, writers: Mapping[str, Summarizer], *, whole_seconds: float = WHOLE_SECONDS) -> None:
        """Takes the summarizers by the names that the table of modes uses."""
        self._writers = writers
        self._whole_seconds = whole_seconds

    async def compact(self, occasion: CompactionRequest) -> CompactionPlan | None:
        """See Compactor."""
        mode = mode_of(occasion.settings)
        chosen = self._choose(occasion, mode)
        if chosen is None:
            return None
        try:
            async with asyncio.timeout(self._whole_seconds):
                found = await self._by_models(occasion, mode, chosen)
        except TimeoutError:
            _log.warning("summary_timed_out", seconds=self._whole_seconds)
            found = None
        return found or self._digest(occasion, chosen)

    async def _by_models(self, occasion: CompactionRequest, mode: Mode, chosen: _Chosen) -> CompactionPlan | None:
        down: set[str] = set()
        for each in chain(mode):
            # A fallback mode evicts by its own plan, if it has one.
            ours = chosen if each is mode else self._choose(occasion, each) or chosen
            try:
                written = await self._writers[each.writer].write(
                    SummaryRequest(occasion, ours.plan, each.name, ours.tokens), down
                )
            except SummaryFailed as error:
                _log.warning("summary_failed", mode=each.name, why=str(error))
                continue
            return CompactionPlan(ours.plan, self._fitted(occasion, written, ours), each.name)
        return None

    def _digest(self, occasion: CompactionRequest, chosen: _Chosen) -> CompactionPlan:
        limit = min(_clip_chars(occasion), max(chosen.tokens, 1) * 4)
        summary = digest(chosen.plan.evicted, limit)
        written = Summary(SUMMARY_NOTE + summary, summary)
        return CompactionPlan(chosen.plan, self._fitted(occasion, written, chosen), _DIGEST)

    def _choose(self, occasion: CompactionRequest, mode: Mode) -> _Chosen | None:
        sizes, messages, start = occasion.sizes, occasion.messages, occasion.current
        plan = within_turn(messages, start, sizes) if is_crowded(start, sizes) else None
        if plan is None:
            share = occasion.settings.sliding_window_percentage
            plan = mode.plan(messages, start, sizes, DEFAULT_SHARE if share is None else share)
        if plan is None or not _is_worth_it(occasion, plan):
            return None
        if occasion.least_gain is None:
            return _Chosen(plan, sizes.summary)
        return _Chosen(plan, min(sizes.summary, plan.evicted_tokens - _NOTE_TOKENS))

    def _fitted(self, occasion: CompactionRequest, written: Summary, chosen: _Chosen) -> Summary:
        """Returns the summary, cut if it is longer than the limit."""
        summary = clipped(written.summary, _clip_chars(occasion))
        while (tokens := occasion.tokens(summary)) > chosen.tokens:
            bare = summary.removesuffix(CLIPPED)
            shorter = min(len(bare) - 1, int(len(bare) * chosen.tokens / tokens))
            if shorter <= 0:
                summary = ""
                break
            summary = clipped(bare, shorter)
        if summary == written.summary:
            return written
        return replace(written, text=written.text.replace(written.summary, summary), summary=summary)


def model_compactor(
    models: ModelCatalog,
    episodes: EpisodesPort,
    recall: RecallPort,
    clock: Clock,
    *,
    call_seconds: float = CALL_SECONDS,
    whole_seconds: float = WHOLE_SECONDS,
) -> ModelCompactor:
    """Returns the compactor with the summarizers of every mode."""
    writers: dict[str, Summarizer] = {
        "transcript": TranscriptSummarizer(models, clock, call_seconds),
        "self": SelfSummarizer(models, call_seconds),
        "episodic": EpisodicSummarizer(models, episodes, recall, clock, call_seconds),
    }
    return ModelCompactor(writers, whole_seconds=whole_seconds)


def summary_tokens(clip_chars: int | None, limit: int) -> int:
    """Returns the token limit of a summary in a request of `limit` tokens: the configured one, at most an eighth."""
    characters = DEFAULT_CLIP_CHARS if clip_chars is None else clip_chars
    return max(_NOTE_TOKENS, min(characters // 3, limit // 8))


def _clip_chars(occasion: CompactionRequest) -> int:
    given = occasion.settings.clip_chars
    return DEFAULT_CLIP_CHARS if given is None else given


def _is_worth_it(occasion: CompactionRequest, plan: Plan) -> bool:
    if occasion.least_gain is None:
        return len(plan.evicted) > 1 or plan.evicted_tokens > LEAST_GAIN
    return plan.evicted_tokens >= max(LEAST_GAIN, occasion.least_gain)
