"""Makes windows smaller: chooses what leaves, has it summarized, and tries the fallback modes on failure."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.clients.recall import EpisodesClient, RecallClient
from mnemesh_orchestrator.compaction.episodic import EpisodicSummarizer, MemoryHead, StoredMemory, without_memory
from mnemesh_orchestrator.compaction.planner import (
    DEFAULT_CLIP_CHARS,
    DEFAULT_SHARE,
    CompactionPlan,
    CompactionRequest,
    Cut,
    Mode,
    Summarizer,
    Summary,
    SummaryFailed,
    SummaryRequest,
    fallback_chain,
    is_crowded,
    mode_of,
    plan_within_turn,
)
from mnemesh_orchestrator.compaction.summarizers import (
    CALL_SECONDS,
    CLIPPED,
    SUMMARY_NOTE,
    SelfSummarizer,
    TranscriptSummarizer,
    clipped,
    digest,
)
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog

_log = structlog.get_logger("mnemesh.compaction")

TOTAL_SECONDS: Final = 300.0
_NOTE_TOKENS: Final = 80
"""The tokens that the summary message costs in addition to its text."""
MIN_GAIN: Final = 2 * _NOTE_TOKENS
"""Fewer tokens than this are not worth a summary, which costs some itself."""
_DIGEST: Final = "digest"


class Compactor:
    """Makes windows smaller: calls models within a time limit, and falls back to excerpts. Stores nothing.

    It never raises because of a model: if every model of the chain fails, the summary consists of excerpts.
    """

    def __init__(
        self, summarizers: Mapping[str, Summarizer], memory: StoredMemory, *, total_seconds: float = TOTAL_SECONDS
    ) -> None:
        """Takes the summarizers by the names that the table of modes uses, and the memory that windows show."""
        self._summarizers = summarizers
        self._memory = memory
        self._total_seconds = total_seconds

    async def compact(self, request: CompactionRequest) -> CompactionPlan | None:
        """Returns the messages that leave and their summary; None if nothing can leave.

        Never fails because of a model.
        """
        mode = mode_of(request.settings)
        cut = _choose_cut(request, mode)
        if cut is None:
            return None
        try:
            async with asyncio.timeout(self._total_seconds):
                plan = await self._summarize(request, mode, cut)
        except TimeoutError:
            _log.warning("summary_timed_out", seconds=self._total_seconds)
            plan = None
        if plan is not None:
            return plan
        head = await self._head(request, mode, cut)
        return _plan(request, _DIGEST, cut, _digest(request, _read_by_fallback(cut, head), head), head)

    async def _summarize(self, request: CompactionRequest, first: Mode, cut: Cut) -> CompactionPlan | None:
        """Returns the plan with the summary of the first mode that succeeds. A fallback evicts by its own planner."""
        down: set[str] = set()
        for mode in fallback_chain(first):
            mode_cut = cut if mode is first else _choose_cut(request, mode) or cut
            head = None if mode is first else await self._head(request, first, mode_cut)
            to_read, limit = _read_by_fallback(mode_cut, head), _notes_limit(request, mode_cut, head)
            try:
                summary = await self._summarizers[mode.summarizer].summarize(
                    SummaryRequest(request, to_read, mode.name, limit), down
                )
            except SummaryFailed as error:
                _log.warning("summary_failed", mode=mode.name, error=str(error))
                continue
            return _plan(request, mode.name, mode_cut, summary, head)
        return None

    async def _head(self, request: CompactionRequest, mode: Mode, cut: Cut) -> MemoryHead | None:
        """Returns the memory that the window shows above the notes of a fallback; None if it shows none."""
        head = await self._memory.head(request, cut) if mode.shows_memory else None
        return None if head is None or head.is_empty else head


def model_compactor(
    models: ModelCatalog,
    episodes: EpisodesClient,
    recall: RecallClient,
    clock: Clock,
    *,
    call_seconds: float = CALL_SECONDS,
    total_seconds: float = TOTAL_SECONDS,
) -> Compactor:
    """Returns the compactor with the summarizers of every mode."""
    memory = StoredMemory(episodes)
    summarizers: dict[str, Summarizer] = {
        "transcript": TranscriptSummarizer(models, clock, call_seconds),
        "self": SelfSummarizer(models, call_seconds),
        "episodic": EpisodicSummarizer(models, memory, recall, clock, call_seconds),
    }
    return Compactor(summarizers, memory, total_seconds=total_seconds)


def summary_tokens(clip_chars: int | None, limit: int) -> int:
    """Returns the token limit of a summary in a request of `limit` tokens: the configured one, at most an eighth."""
    characters = DEFAULT_CLIP_CHARS if clip_chars is None else clip_chars
    return max(_NOTE_TOKENS, min(characters // 3, limit // 8))


def _choose_cut(request: CompactionRequest, mode: Mode) -> Cut | None:
    sizes, messages, start = request.sizes, request.messages, request.turn_start
    cut = plan_within_turn(messages, start, sizes) if is_crowded(start, sizes) else None
    if cut is None:
        share = request.settings.sliding_window_percentage
        cut = mode.planner(messages, start, sizes, DEFAULT_SHARE if share is None else share)
    return cut if cut is not None and _is_worthwhile(request, cut) else None


def _summary_limit(request: CompactionRequest, cut: Cut) -> int:
    """Returns the token limit of a summary, which leaves a gain if one is required."""
    if request.min_gain is None:
        return request.sizes.summary
    return min(request.sizes.summary, cut.evicted_tokens - _NOTE_TOKENS)


def _notes_limit(request: CompactionRequest, cut: Cut, head: MemoryHead | None) -> int:
    """Returns the token limit of a summary. Half of it is the memory's, if the window shows one."""
    limit = _summary_limit(request, cut)
    return limit if head is None else limit // 2


def _read_by_fallback(cut: Cut, head: MemoryHead | None) -> Cut:
    return cut if head is None else without_memory(cut)


def _digest(request: CompactionRequest, cut: Cut, head: MemoryHead | None) -> Summary:
    limit = _notes_limit(request, cut, head)
    text = digest(cut.evicted, min(_clip_chars(request), max(limit, 1) * 4))
    return Summary(SUMMARY_NOTE + text, text)


def _plan(request: CompactionRequest, mode: str, cut: Cut, summary: Summary, head: MemoryHead | None) -> CompactionPlan:
    limit = _summary_limit(request, cut)
    if head is not None:
        notes = _shortened(request, summary, _notes_limit(request, cut, head))
        summary = head.with_notes(request, cut, notes.text, limit)
    return CompactionPlan(cut, _shortened(request, summary, limit), mode)


def _shortened(request: CompactionRequest, summary: Summary, limit: int) -> Summary:
    """Returns the summary, cut if it is longer than the limits in tokens and characters."""
    text = clipped(summary.text, _clip_chars(request))
    while (tokens := request.text_tokens(text)) > limit:
        bare = text.removesuffix(CLIPPED)
        shorter = min(len(bare) - 1, int(len(bare) * limit / tokens))
        if shorter <= 0:
            text = ""
            break
        text = clipped(bare, shorter)
    if text == summary.text:
        return summary
    return replace(summary, window_text=summary.window_text.replace(summary.text, text), text=text)


def _clip_chars(request: CompactionRequest) -> int:
    configured = request.settings.clip_chars
    return DEFAULT_CLIP_CHARS if configured is None else configured


def _is_worthwhile(request: CompactionRequest, cut: Cut) -> bool:
    if request.min_gain is None:
        return len(cut.evicted) > 1 or cut.evicted_tokens > MIN_GAIN
    return cut.evicted_tokens >= max(MIN_GAIN, request.min_gain)
