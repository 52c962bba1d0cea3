"""Summarizes turns as memories: a model extracts episodes and facts, and a snapshot shows the memory."""

from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError
from mnemesh_types.messages import Role

from mnemesh_orchestrator.compaction.chunked_summary import MIN_CAPACITY, ChunkedReader
from mnemesh_orchestrator.compaction.extraction import FORMAT, Material, commits_of, length_of, problem_of
from mnemesh_orchestrator.compaction.merge import folded
from mnemesh_orchestrator.compaction.planner import turns_in, whole_turns
from mnemesh_orchestrator.compaction.port import ModelCatalog, Summary, SummaryFailed, SummaryRequest
from mnemesh_orchestrator.compaction.snapshot import EPISODES, EPISODIC_HEADING, snapshot, with_commits
from mnemesh_orchestrator.compaction.summarizers import (
    CALL_SECONDS,
    SummaryModel,
    aside,
    said,
    summary_model_request,
    summary_models,
    transcript_capacity,
)
from mnemesh_orchestrator.compaction.transcript import SUMMARY_NOTE, halved, notes
from mnemesh_orchestrator.llm.errors import ContextOverflow
from mnemesh_orchestrator.llm.formats import demand
from mnemesh_orchestrator.model.episodes import EpisodeCommit, MemoryBundle, MemoryScope
from mnemesh_orchestrator.ports.episodes import EpisodesPort
from mnemesh_orchestrator.ports.recall import RecallPort

_log = structlog.get_logger("mnemesh.compaction")

_KNOWN_FACTS: Final = 100
"""The number of most salient facts that the model sees, and may contradict or confirm."""
_TRIES: Final = 3
_ANSWER: Final = 4
"""The characters of an unusable answer that are shown to the model, per token of its summaries."""
_AGAIN: Final = (
    "That answer cannot be used: {problem}\n"
    "Answer again with the whole JSON object, and nothing else. Labels are those of the material: m1, f1."
)


@dataclass(frozen=True, slots=True)
class EpisodicSummarizer:
    """Extracts episodes and facts with a model, and renders the memory as it will be afterwards.

    Stores nothing. The memories are returned with the summary.
    """

    models: ModelCatalog
    episodes: EpisodesPort
    recall: RecallPort
    clock: Clock
    call_seconds: float = CALL_SECONDS

    async def write(self, task: SummaryRequest, down: set[str]) -> Summary:
        """See Summarizer."""
        bundle, material = await self._material(task)
        why = "no model can draw memories"
        for summary_model in await summary_models(self.models, task):
            handle = summary_model.info.handle
            if handle in down:
                why = f"{handle} does not answer"
                continue
            try:
                commits = await self._extract(task, summary_model, bundle, material)
            except SummaryFailed as error:
                why = str(error)
                if error.is_down:
                    down.add(handle)
                continue
            return _written(task, bundle, commits)
        raise SummaryFailed(why)

    async def _material(self, task: SummaryRequest) -> tuple[MemoryBundle, Material]:
        occasion = task.occasion
        messages = tuple(message for message in task.plan.evicted if message.role is not Role.SUMMARY)
        if not messages:
            raise SummaryFailed("no turn leaves the window")
        scope = MemoryScope(occasion.agent_id, occasion.settings.memory_scope)
        try:
            bundle = await self.episodes.bundle(scope, EPISODES, _KNOWN_FACTS)
            stored = await self.recall.get_context(occasion.conversation_id)
        except MnemeshError as error:
            raise SummaryFailed(error.message) from error
        known = (*messages, *(stored.messages if stored is not None else ()))
        turns = {message.id: message.turn_id for message in known if message.turn_id is not None}
        return bundle, Material(scope, occasion.conversation_id, messages, bundle.facts, turns)

    async def _extract(
        self, task: SummaryRequest, summary_model: SummaryModel, bundle: MemoryBundle, material: Material
    ) -> tuple[EpisodeCommit, ...]:
        """Returns the memories that a model extracts from all turns, in several calls if they do not fit into one.

        Later calls know the facts of earlier ones.
        """
        turns = whole_turns(material.messages)
        commits: tuple[EpisodeCommit, ...] = ()

        async def ask(start: int, end: int, limit: int) -> None:
            nonlocal commits
            messages = tuple(message for turn in turns[start:end] for message in turn)
            part = replace(material, messages=messages, facts=with_commits(bundle, commits).facts)
            text = part.shown(limit, _earlier(task) if start == 0 else "")
            commits = folded(commits, await self._extract_with(task, summary_model, part, text))

        sizes = [length_of(turn) for turn in turns]
        everything = material.shown(sum(sizes), _earlier(task))
        # Facts and notes are shown with the turns.
        capacity = max(
            MIN_CAPACITY, transcript_capacity(task, summary_model, everything) - (len(everything) - sum(sizes))
        )
        await ChunkedReader(self.clock, self.call_seconds).read(sizes, capacity, ask)
        return commits

    async def _extract_with(
        self, task: SummaryRequest, summary_model: SummaryModel, material: Material, shown: str
    ) -> tuple[EpisodeCommit, ...]:
        """Extracts memories with one model.

        It is told what is wrong with an answer. Of the last one, the usable part is used.
        """
        request = summary_model_request(task, summary_model, shown)
        told = demand(FORMAT, summary_model.info)
        if told is not None:
            prompt = request.messages[0]
            more = aside(Role.SYSTEM, f"{prompt.text}\n\n{told}", task)
            request = replace(request, messages=(more, *request.messages[1:]))
        request = replace(request, response_format=FORMAT)
        asked = request.messages
        text = await said(summary_model.client, request, self.call_seconds)
        for _ in range(_TRIES - 1):
            problem = problem_of(text, material)
            if problem is None:
                break
            _log.warning("memory_extraction_unusable", model=summary_model.info.handle, problem=problem)
            # An answer that runs on does not fit with the material, and neither do two answers.
            shown = halved(text, max(MIN_CAPACITY, task.tokens * _ANSWER))
            words = (aside(Role.ASSISTANT, shown, task), aside(Role.USER, _AGAIN.format(problem=problem), task))
            request = replace(request, messages=(*asked, *words))
            try:
                text = await said(summary_model.client, request, self.call_seconds)
            except (SummaryFailed, ContextOverflow):
                break
        commits = commits_of(text, material, summary_model.info.handle)
        if not commits:
            raise SummaryFailed(f"{summary_model.info.handle} returned no usable memories")
        return commits


def _earlier(task: SummaryRequest) -> str:
    """Returns the summary at the head of the window, unless it is memory that recall holds already."""
    found = [notes(message) for message in task.plan.evicted if message.role is Role.SUMMARY]
    return "" if not found or found[-1].startswith(EPISODIC_HEADING) else found[-1]


def _written(task: SummaryRequest, bundle: MemoryBundle, commits: tuple[EpisodeCommit, ...]) -> Summary:
    occasion = task.occasion
    clip = occasion.settings.clip_chars
    kept = occasion.messages[task.plan.end : occasion.current]

    def fits(text: str) -> bool:
        return occasion.tokens(text) <= task.tokens and (clip is None or len(text) <= clip)

    text = snapshot(with_commits(bundle, commits), turns_in(kept), fits)
    return Summary(SUMMARY_NOTE + text, text, commits)
