"""Writes what an agent remembers of turns that leave: episodes and facts by a model, and the snapshot of memory."""

from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError
from mnemesh_types.messages import Role

from mnemesh_orchestrator.compaction.chunked_summary import LEAST_ROOM, Stages
from mnemesh_orchestrator.compaction.extraction import FORMAT, Material, commits_of, length_of, problem_of
from mnemesh_orchestrator.compaction.merge import folded
from mnemesh_orchestrator.compaction.planner import turns_in, whole_turns
from mnemesh_orchestrator.compaction.port import ModelCatalog, Summary, SummaryFailed, SummaryRequest
from mnemesh_orchestrator.compaction.snapshot import EPISODES, EPISODIC_HEADING, snapshot, with_commits
from mnemesh_orchestrator.compaction.summarizers import (
    CALL_SECONDS,
    SummaryModel,
    aside,
    room_of,
    said,
    summariser_request,
    summarisers,
)
from mnemesh_orchestrator.compaction.transcript import SUMMARY_NOTE, halved, notes
from mnemesh_orchestrator.llm.errors import ContextOverflow
from mnemesh_orchestrator.llm.formats import demand
from mnemesh_orchestrator.model.episodes import EpisodeCommit, MemoryBundle, MemoryScope
from mnemesh_orchestrator.ports.episodes import EpisodesPort
from mnemesh_orchestrator.ports.recall import RecallPort

_log = structlog.get_logger("mnemesh.compaction")

_KNOWN_FACTS: Final = 100
"""So many of the most salient facts are shown to the model, which may contradict or confirm them."""
_TRIES: Final = 3
_ANSWER: Final = 4
"""Characters that are shown of a spoiled answer, for each token that its summaries may take."""
_AGAIN: Final = (
    "That answer cannot be used: {problem}\n"
    "Answer again with the whole JSON object, and nothing else. Labels are those of the material: m1, f1."
)


@dataclass(frozen=True, slots=True)
class EpisodicSummarizer:
    """Has a model draw episodes and facts from what leaves, and shows the memory as it will be then.

    Stores nothing: what is to be kept goes with the words.
    """

    models: ModelCatalog
    episodes: EpisodesPort
    recall: RecallPort
    clock: Clock
    call_seconds: float = CALL_SECONDS

    async def write(self, task: SummaryRequest, down: set[str]) -> Summary:
        """See Writer."""
        bundle, material = await self._material(task)
        why = "no model can draw memories"
        for summariser in await summarisers(self.models, task):
            handle = summariser.info.handle
            if handle in down:
                why = f"{handle} does not answer"
                continue
            try:
                commits = await self._drawn(task, summariser, bundle, material)
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
            raise SummaryFailed("no turn leaves")
        scope = MemoryScope(occasion.agent_id, occasion.settings.memory_scope)
        try:
            bundle = await self.episodes.bundle(scope, EPISODES, _KNOWN_FACTS)
            stored = await self.recall.get_context(occasion.conversation_id)
        except MnemeshError as error:
            raise SummaryFailed(error.message) from error
        known = (*messages, *(stored.messages if stored is not None else ()))
        turns = {message.id: message.turn_id for message in known if message.turn_id is not None}
        return bundle, Material(scope, occasion.conversation_id, messages, bundle.facts, turns)

    async def _drawn(
        self, task: SummaryRequest, summariser: SummaryModel, bundle: MemoryBundle, material: Material
    ) -> tuple[EpisodeCommit, ...]:
        """What a model draws of all turns; where they are too much for one request, of some after the other.

        What a part said of facts is known to the next one.
        """
        turns = whole_turns(material.messages)
        commits: tuple[EpisodeCommit, ...] = ()

        async def ask(start: int, end: int, limit: int) -> None:
            nonlocal commits
            messages = tuple(message for turn in turns[start:end] for message in turn)
            part = replace(material, messages=messages, facts=with_commits(bundle, commits).facts)
            text = part.shown(limit, _earlier(task) if start == 0 else "")
            commits = folded(commits, await self._drawn_of(task, summariser, part, text))

        sizes = [length_of(turn) for turn in turns]
        everything = material.shown(sum(sizes), _earlier(task))
        # Facts and notes are shown with the turns.
        room = max(LEAST_ROOM, room_of(task, summariser, everything) - (len(everything) - sum(sizes)))
        await Stages(self.clock, self.call_seconds).read(sizes, room, ask)
        return commits

    async def _drawn_of(
        self, task: SummaryRequest, summariser: SummaryModel, material: Material, shown: str
    ) -> tuple[EpisodeCommit, ...]:
        """What a model draws; it is told what is wrong with an answer. Of the last one, what can be used is used."""
        request = summariser_request(task, summariser, shown)
        told = demand(FORMAT, summariser.info)
        if told is not None:
            prompt = request.messages[0]
            more = aside(Role.SYSTEM, f"{prompt.text}\n\n{told}", task)
            request = replace(request, messages=(more, *request.messages[1:]))
        request = replace(request, response_format=FORMAT)
        asked = request.messages
        text = await said(summariser.client, request, self.call_seconds)
        for _ in range(_TRIES - 1):
            problem = problem_of(text, material)
            if problem is None:
                break
            _log.warning("memories cannot be used as they are", model=summariser.info.handle, problem=problem)
            # What runs on does not fit beside the material, and neither do two answers.
            shown = halved(text, max(LEAST_ROOM, task.tokens * _ANSWER))
            words = (aside(Role.ASSISTANT, shown, task), aside(Role.USER, _AGAIN.format(problem=problem), task))
            request = replace(request, messages=(*asked, *words))
            try:
                text = await said(summariser.client, request, self.call_seconds)
            except (SummaryFailed, ContextOverflow):
                break
        commits = commits_of(text, material, summariser.info.handle)
        if not commits:
            raise SummaryFailed(f"{summariser.info.handle} draws no memories that can be used")
        return commits


def _earlier(task: SummaryRequest) -> str:
    """What stood at the head of the window, unless it is memory that recall has anyhow."""
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
