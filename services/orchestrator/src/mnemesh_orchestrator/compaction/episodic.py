"""Summarizes turns as memories: a model extracts episodes and facts, and a snapshot shows the memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Role

from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.compaction.completion import usable_answer
from mnemesh_orchestrator.compaction.extraction import FORMAT, Material, answer_problem, parse_commits, rendered_length
from mnemesh_orchestrator.compaction.planner import count_turns, split_turns
from mnemesh_orchestrator.compaction.port import Summary, SummaryFailed, SummaryRequest
from mnemesh_orchestrator.compaction.stored_memory import StoredMemory, fits, snapshot, split_notes, with_commits
from mnemesh_orchestrator.compaction.summarizers import (
    CALL_SECONDS,
    MIN_CAPACITY,
    ChunkedReader,
    SummaryModel,
    instruction_message,
    summary_model_request,
    summary_models,
    transcript_capacity,
)
from mnemesh_orchestrator.compaction.transcript import SUMMARY_NOTE, summary_text
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.schemas import format_instruction
from mnemesh_orchestrator.model.episodes import Change, EpisodeCommit, FactChange, MemoryBundle

_PENDING = re.compile(r"new-(\d+)-(\d+)")

_log = structlog.get_logger("mnemesh.compaction")

_QUOTED_CHARACTERS_PER_TOKEN: Final = 4
"""The characters of an unusable answer that are shown to the model, per token of its summaries."""


def merge_commits(commits: Sequence[EpisodeCommit], later: Sequence[EpisodeCommit]) -> tuple[EpisodeCommit, ...]:
    """Returns the commits of the earlier parts, then those of a later one.

    Facts that are not stored yet have the ids of the snapshot. A contradicted or retracted fact is closed, and a
    contradiction is new. A confirmed fact gets more messages as evidence.
    """
    changes = [list(commit.changes) for commit in commits]
    for commit in later:
        own_changes: list[FactChange] = []
        for change in commit.changes:
            pending = _PENDING.fullmatch(change.fact_id or "")
            if pending is None:
                own_changes.append(change)
                continue
            commit_index, change_index = map(int, pending.groups())
            earlier = changes[commit_index][change_index]
            if change.change is Change.CONFIRM:
                sources = dict.fromkeys((*earlier.message_ids, *change.message_ids))
                changes[commit_index][change_index] = replace(earlier, message_ids=tuple(sources))
            else:
                changes[commit_index][change_index] = replace(earlier, ended_at=change.told_at)
                if change.change is not Change.RETRACT:
                    own_changes.append(replace(change, change=Change.ADD, fact_id=None))
        changes.append(own_changes)
    all_commits = zip((*commits, *later), changes, strict=True)
    return tuple(replace(commit, changes=tuple(own_changes)) for commit, own_changes in all_commits)


@dataclass(frozen=True, slots=True)
class EpisodicSummarizer:
    """Extracts episodes and facts with a model, and renders the memory as it will be afterwards.

    Stores nothing. The memories are returned with the summary.
    """

    models: ModelCatalog
    memory: StoredMemory
    recall: RecallClient
    clock: Clock
    call_seconds: float = CALL_SECONDS

    async def summarize(self, request: SummaryRequest, down: set[str]) -> Summary:
        """See Summarizer."""
        bundle, shown, material = await self._material(request)
        problem = "no model can extract memories"
        for summary_model in await summary_models(self.models, request):
            handle = summary_model.info.handle
            if handle in down:
                problem = f"{handle} does not answer"
                continue
            try:
                commits = await self._extract(request, summary_model, bundle, material)
            except SummaryFailed as error:
                problem = str(error)
                if error.is_down:
                    down.add(handle)
                continue
            return _summary(request, shown, commits)
        raise SummaryFailed(problem)

    async def _material(self, request: SummaryRequest) -> tuple[MemoryBundle, MemoryBundle, Material]:
        """Returns the memory that the turns add to, the memory that the window shows, and the material."""
        compaction = request.compaction
        messages = tuple(message for message in request.cut.evicted if message.role is not Role.SUMMARY)
        if not messages:
            raise SummaryFailed("no turn leaves the window")
        scope = compaction.memory.stored
        try:
            bundle = await self.memory.read(scope, messages)
            shown = bundle if compaction.memory.found == (scope,) else await self.memory.shown(compaction)
            stored = await self.recall.get_context(compaction.conversation_id)
        except MnemeshError as error:
            raise SummaryFailed(error.message) from error
        known = (*messages, *(stored.messages if stored is not None else ()))
        turns = {message.id: message.turn_id for message in known if message.turn_id is not None}
        return bundle, shown, Material(scope, compaction.conversation_id, messages, bundle.facts, turns)

    async def _extract(
        self, request: SummaryRequest, summary_model: SummaryModel, bundle: MemoryBundle, material: Material
    ) -> tuple[EpisodeCommit, ...]:
        """Returns the memories that a model extracts from all turns, in several calls if they do not fit into one.

        Later calls know the facts of earlier ones.
        """
        turns = split_turns(material.messages)
        commits: tuple[EpisodeCommit, ...] = ()

        async def read_part(start: int, end: int, limit: int) -> None:
            nonlocal commits
            messages = tuple(message for turn in turns[start:end] for message in turn)
            part = replace(material, messages=messages, facts=with_commits(bundle, commits).facts)
            text = part.render(limit, _earlier_notes(request) if start == 0 else "")
            commits = merge_commits(commits, await self._extract_with(request, summary_model, part, text))

        sizes = [rendered_length(turn) for turn in turns]
        everything = material.render(sum(sizes), _earlier_notes(request))
        # Facts and notes are shown with the turns.
        capacity = max(
            MIN_CAPACITY, transcript_capacity(request, summary_model, everything) - (len(everything) - sum(sizes))
        )
        await ChunkedReader(self.clock, self.call_seconds).read(sizes, capacity, read_part)
        return commits

    async def _extract_with(
        self, request: SummaryRequest, summary_model: SummaryModel, material: Material, text: str
    ) -> tuple[EpisodeCommit, ...]:
        """Extracts memories with one model.

        An unusable answer is returned to the model with the problem. Of the last answer, the usable part is used.
        """
        llm_request = summary_model_request(request, summary_model, text)
        instruction = format_instruction(FORMAT, summary_model.info)
        if instruction is not None:
            prompt = llm_request.messages[0]
            system = instruction_message(Role.SYSTEM, f"{prompt.text}\n\n{instruction}", request)
            llm_request = replace(llm_request, messages=(system, *llm_request.messages[1:]))
        llm_request = replace(llm_request, response_format=FORMAT)
        answer = await usable_answer(
            request.compaction.on_call,
            summary_model.client,
            llm_request,
            self.call_seconds,
            lambda text: answer_problem(text, material),
            max(MIN_CAPACITY, request.tokens * _QUOTED_CHARACTERS_PER_TOKEN),
        )
        commits = parse_commits(answer, material, summary_model.info.handle)
        if not commits:
            raise SummaryFailed(f"{summary_model.info.handle} returned no usable memories")
        return commits


def _earlier_notes(request: SummaryRequest) -> str:
    """Returns the summary at the head of the window, without the memory that recall holds already."""
    notes = [summary_text(message) for message in request.cut.evicted if message.role is Role.SUMMARY]
    return split_notes(notes[-1])[1] if notes else ""


def _summary(request: SummaryRequest, bundle: MemoryBundle, commits: tuple[EpisodeCommit, ...]) -> Summary:
    compaction = request.compaction
    remaining = compaction.messages[request.cut.end : compaction.turn_start]
    text = snapshot(with_commits(bundle, commits), count_turns(remaining), fits(compaction, request.tokens))
    return Summary(SUMMARY_NOTE + text, text, commits)
