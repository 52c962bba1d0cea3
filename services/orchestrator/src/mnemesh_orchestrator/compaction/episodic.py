"""Memories: the stored ones at the head of a window, and those that a model extracts from turns."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from mnemesh_kit.errors import FailedPrecondition, MnemeshError, Unavailable
from mnemesh_kit.ids import derive_id
from mnemesh_kit.secret_patterns import find_secrets
from mnemesh_kit.time import Clock
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.clients.recall import EpisodesClient, RecallClient
from mnemesh_orchestrator.compaction.extraction import (
    FACTS_FORMAT,
    FORMAT,
    Material,
    answer_problem,
    facts_problem,
    parse_changes,
    parse_commits,
    rendered_length,
)
from mnemesh_orchestrator.compaction.planner import (
    CompactionRequest,
    Cut,
    Summary,
    SummaryFailed,
    SummaryRequest,
    count_turns,
    split_turns,
)
from mnemesh_orchestrator.compaction.prompts import summary_prompt
from mnemesh_orchestrator.compaction.summarizers import (
    CALL_SECONDS,
    MIN_CAPACITY,
    SUMMARY_NOTE,
    ChunkedReader,
    OnCall,
    SummaryModel,
    default_summary_model,
    instruction_message,
    summary_model_request,
    summary_models,
    summary_text,
    transcript,
    transcript_capacity,
    usable_answer,
)
from mnemesh_orchestrator.llm.errors import ContextOverflow, ModelUnknown, ProviderBadAnswer
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.schemas import format_instruction
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.episodes import (
    Change,
    Episode,
    EpisodeCommit,
    Fact,
    FactChange,
    MemoryBundle,
    MemoryExtractionSettings,
    MemoryScope,
)
from mnemesh_orchestrator.model.models import settings_over

SHOWN_EPISODES: Final = 3
SHOWN_FACTS: Final = 20
_MAX_LINE_CHARACTERS: Final = 2_000
EPISODIC_HEADING: Final = "[MEMORY:EPISODIC]"
_SEMANTIC_HEADING: Final = "[MEMORY:SEMANTIC]"
_NOTES_HEADING: Final = "[NOTES]"
_RECENT_HEADING: Final = "[RECENT TURNS]"
_NOTES: Final = re.compile(
    rf"\n\n{re.escape(_NOTES_HEADING)}\n(.*?)"
    rf"(?:\n\n{re.escape(_RECENT_HEADING)}\nThe last \d+ follow as messages\.)?\Z",
    re.DOTALL,
)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)

_log = structlog.get_logger("mnemesh.compaction")

SALIENT_FACTS: Final = 60
"""The number of most salient facts that a model sees, and may contradict, confirm or retract."""
SIMILAR_FACTS: Final = 60
"""The number of further facts that it sees, by their similarity to the turns."""
_QUERIES: Final = 20
_FACTS_PER_QUERY: Final = 8
_QUERY_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a snapshot: episodes, oldest first, and facts, most important first; then notes."""

    episodes: tuple[str, ...]
    facts: tuple[str, ...]
    turns: int
    notes: str

    def text(self) -> str:
        episodes = (f"{index}) {line}" for index, line in enumerate(self.episodes, 1))
        sections = [
            "\n".join((EPISODIC_HEADING, *episodes)) if self.episodes else "",
            "\n".join((_SEMANTIC_HEADING, *(f"- {line}" for line in self.facts))) if self.facts else "",
            f"{_NOTES_HEADING}\n{self.notes}" if self.notes else "",
            f"{_RECENT_HEADING}\nThe last {self.turns} follow as messages." if self.turns else "",
        ]
        return "\n\n".join(filter(None, sections))


def snapshot(bundle: MemoryBundle, turns: int, fits: Callable[[str], bool], notes: str = "") -> str:
    """Returns the text, short enough for `fits`: older episodes are dropped first, then the last facts, then the end of
    the episode.

    `turns` is the number of whole turns that stay in the window after it. `notes` are about turns whose memories could
    not be extracted.
    """
    lines = _Lines(
        tuple(_line(episode.summary) for episode in bundle.episodes[-SHOWN_EPISODES:]),
        tuple(_line(fact.text) for fact in rank_facts(bundle.facts)[:SHOWN_FACTS]),
        turns,
        notes,
    )
    while not fits(text := lines.text()):
        if len(lines.episodes) > 1:
            lines = replace(lines, episodes=lines.episodes[1:])
        elif lines.facts:
            lines = replace(lines, facts=lines.facts[:-1])
        elif lines.episodes and len(lines.episodes[0]) > 1:
            line = lines.episodes[0].removesuffix("…")
            lines = replace(lines, episodes=(line[: len(line) // 2] + "…",))
        else:
            break
    return text


def split_notes(text: str) -> tuple[str, str]:
    """Returns the memory and the notes of the text at the head of a window. A text without memory is all notes."""
    if not text.startswith((EPISODIC_HEADING, _SEMANTIC_HEADING)):
        return "", text
    found = _NOTES.search(text)
    return (text, "") if found is None else (text[: found.start()], found[1])


def join_notes(memory: str, notes: str) -> str:
    """Returns a text whose parts `split_notes` returns. Either may be empty."""
    return f"{memory}\n\n{_NOTES_HEADING}\n{notes}" if memory and notes else memory or notes


def rank_facts(facts: Sequence[Fact]) -> list[Fact]:
    """Returns facts by salience, then newest first, then by id."""
    by_id = sorted(facts, key=lambda fact: fact.id)
    return sorted(by_id, key=lambda fact: (fact.salience, fact.created_at), reverse=True)


def with_commits(bundle: MemoryBundle, commits: Sequence[EpisodeCommit]) -> MemoryBundle:
    """Returns the memory as it will be when the commits are stored, in their order."""
    known = [*(episode.created_at for episode in bundle.episodes), *(fact.created_at for fact in bundle.facts)]
    now = max(known, default=_EARLIEST) + timedelta(microseconds=1)
    episodes, facts = list(bundle.episodes), {fact.id: fact for fact in bundle.facts}
    known_texts = {_key(fact.text) for fact in bundle.facts}
    for index, commit in enumerate(commits):
        if (episode := commit.episode) is not None:
            episodes.append(Episode(f"new-{index:04d}", episode.summary, now, episode.tags, episode.salience))
        for number, change in enumerate(commit.changes):
            if change.change is Change.CONFIRM or (change.change is Change.ADD and _key(change.text) in known_texts):
                continue
            replaced = None if change.fact_id is None else facts.pop(change.fact_id, None)
            if replaced is not None:
                known_texts.discard(_key(replaced.text))
            if change.change is Change.RETRACT:
                continue
            tags = change.tags or (replaced.tags if replaced else ())
            if change.ended_at is not None:
                continue
            known_texts.add(_key(change.text))
            # Items without an id follow in the order in which they were named.
            id_ = f"new-{index:04d}-{number:04d}"
            facts[id_] = Fact(id_, change.text, now, tags, change.salience, change.told_at)
    return MemoryBundle(tuple(episodes), tuple(facts.values()))


def _key(text: str) -> str:
    """Returns a key that is equal for texts that recall treats as the same fact."""
    return " ".join(text.casefold().split())


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_CHARACTERS else f"{line[:_MAX_LINE_CHARACTERS]}…"


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """Reads episodes and facts of an agent's scope. Calls no model."""

    episodes: EpisodesClient

    async def read(self, scope: MemoryScope, messages: Sequence[Message]) -> MemoryBundle:
        """Returns the latest episodes, the most salient facts, and the facts that are similar to the messages.

        Raises:
            MnemeshError: recall cannot be read.
        """
        bundle = await self.episodes.bundle((scope,), SHOWN_EPISODES, SALIENT_FACTS)
        if len(bundle.facts) < SALIENT_FACTS:
            return bundle
        found = await asyncio.gather(
            *(self.episodes.search_facts(scope, query, _FACTS_PER_QUERY) for query in _queries(messages))
        )
        known = {fact.id for fact in bundle.facts}
        similar: dict[str, Fact] = {}
        # The best hit of each query first.
        for rank in range(_FACTS_PER_QUERY):
            for hits in found:
                if rank < len(hits) and hits[rank].id not in known and len(similar) < SIMILAR_FACTS:
                    similar.setdefault(hits[rank].id, hits[rank])
        return replace(bundle, facts=(*bundle.facts, *similar.values()))

    async def show(self, request: CompactionRequest) -> MemoryBundle:
        """Returns the memories that a window may show: of the agent, of the scopes that it shares, and of the only
        identity, the group and the conversation of the window.

        Raises:
            MnemeshError: recall cannot be read.
        """
        return await self.episodes.bundle(request.memory.found, SHOWN_EPISODES, SALIENT_FACTS)

    async def head(self, request: CompactionRequest, cut: Cut) -> "MemoryHead":
        """Returns the memory for the head of a window; that of the present window if recall cannot be read."""
        try:
            return MemoryHead(await self.show(request))
        except MnemeshError as error:
            _log.warning("memory_unreadable", error=error.message)
            shown = (split_notes(summary_text(m))[0] for m in cut.evicted if m.role is Role.SUMMARY)
            return MemoryHead(None, next(shown, ""))


@dataclass(frozen=True, slots=True)
class MemoryHead:
    """The memory at the head of a window: as recall holds it, or as the window showed it."""

    bundle: MemoryBundle | None
    shown: str = ""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to show."""
        return not self.shown and (self.bundle is None or not (self.bundle.episodes or self.bundle.facts))

    def with_notes(self, request: CompactionRequest, cut: Cut, notes: str, limit: int) -> Summary:
        """Returns the memory with notes on turns whose memories could not be extracted, in at most `limit` tokens."""
        if self.bundle is None:
            text = join_notes(self.shown, notes)
        else:
            turns = count_turns(request.messages[cut.end : request.turn_start])
            text = snapshot(self.bundle, turns, fits(request, limit), notes)
        return Summary(SUMMARY_NOTE + text, text)


def fits(request: CompactionRequest, limit: int) -> Callable[[str], bool]:
    """Returns whether a text may be at the head of a window: in at most `limit` tokens, and the agent's characters."""
    clip = request.settings.clip_chars
    return lambda text: request.text_tokens(text) <= limit and (clip is None or len(text) <= clip)


def without_memory(cut: Cut) -> Cut:
    """Returns the cut with only the notes of an earlier summary, for a summary that is shown below the memory."""
    evicted = []
    for message in cut.evicted:
        if message.role is Role.SUMMARY:
            notes = split_notes(summary_text(message))[1]
            if not notes:
                continue
            evicted.append(replace(message, content=(TextPart(SUMMARY_NOTE + notes),)))
        else:
            evicted.append(message)
    return replace(cut, evicted=tuple(evicted))


def _queries(messages: Sequence[Message]) -> list[str]:
    """Returns the texts of turns as queries. Adjacent turns share a query if there are many."""
    texts = ["\n".join(filter(None, (message.text for message in turn))) for turn in split_turns(messages)]
    texts = [text for text in texts if text.strip()]
    per_query = -(-len(texts) // _QUERIES)
    groups = [texts[start : start + per_query] for start in range(0, len(texts), max(1, per_query))]
    share = _QUERY_CHARACTERS // max(1, per_query)
    return ["\n".join(text[:share] for text in group) for group in groups]


_PENDING = re.compile(r"new-(\d+)-(\d+)")


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
            shown = bundle if compaction.memory.found == (scope,) else await self.memory.show(compaction)
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


_CHARACTERS: Final = 24_000
_EARLIER_CHARACTERS: Final = 2_000
_MAX_HALVINGS: Final = 3


class UnreadableMemories(ProviderBadAnswer):
    """The model answered, and nothing of its answers can be read. The messages are not processed."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Messages of one conversation whose facts belong to one scope, and the messages just before them."""

    scope: MemoryScope
    conversation_id: str | None
    messages: tuple[Message, ...]
    earlier: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class FactExtractor:
    """Extracts facts with the configured model, the provider's small model, or the agent's own, in this order."""

    models: ModelCatalog
    memory: StoredMemory
    call_seconds: float = CALL_SECONDS

    async def extract(self, agent: Agent, passage: Passage, on_call: OnCall) -> EpisodeCommit | None:
        """Returns the changes of facts that a model finds in the messages; None if it finds none.

        Known facts that are similar to the messages are shown to the model, so that it contradicts or confirms them
        rather than adding others. Facts with secrets are left out.

        Raises:
            FailedPrecondition: no model can be called.
            Unavailable: no model answered, or recall cannot be read.
            UnreadableMemories: the answers of the last model cannot be read.
        """
        bundle = await self.memory.read(passage.scope, passage.messages)
        material = Material(passage.scope, passage.conversation_id, passage.messages, bundle.facts, {})
        problem: MnemeshError = FailedPrecondition(
            "No model can extract facts. Set memory_extraction.model, or give the agent a language model.",
            resource_id=agent.id,
        )
        for model in await self._models(agent):
            try:
                changes = await self._ask(agent, model, material, passage, on_call)
            except UnreadableMemories as error:
                _log.warning("extracted_facts_unreadable", model=model.info.handle, agent_id=agent.id)
                problem = error
                continue
            except (SummaryFailed, ContextOverflow) as error:
                _log.warning("fact_extraction_failed", model=model.info.handle, error=str(error))
                problem = Unavailable(f"{model.info.handle} extracted no facts: {error}", resource_id=agent.id)
                continue
            if not changes:
                return None
            return EpisodeCommit(passage.scope, passage.conversation_id, None, changes, model.info.handle)
        raise problem

    async def _models(self, agent: Agent) -> Sequence[SummaryModel]:
        settings = agent.memory_extraction or MemoryExtractionSettings()
        overrides = settings.model_settings or ModelSettings()
        own, client = await self.models.resolve(agent.organization_id, agent.model)
        handle = settings.model or default_summary_model(own)
        found: list[SummaryModel] = []
        if handle is not None and handle != own.handle:
            try:
                info, other = await self.models.resolve(agent.organization_id, handle)
            except ModelUnknown:
                _log.warning("extraction_model_unknown", model=handle)
            else:
                found.append(SummaryModel(info, info.effective(overrides), other))
        if own.api != "rehearsal":
            own_settings = own.effective(settings_over(overrides, agent.model_settings))
            found.append(SummaryModel(own, own_settings, client))
        return found

    async def _ask(
        self, agent: Agent, model: SummaryModel, material: Material, passage: Passage, on_call: OnCall
    ) -> tuple[FactChange, ...]:
        limit = min(_CHARACTERS, rendered_length(material.messages))
        for _ in range(_MAX_HALVINGS):
            request = _request(agent, model, material, passage, limit)
            try:
                answer = await usable_answer(
                    on_call, model.client, request, self.call_seconds, _problem_of(material), MIN_CAPACITY * 4
                )
            except ContextOverflow:
                limit //= 2
                continue
            changes = parse_changes(answer, material)
            if changes is None:
                message = (
                    f"{model.info.handle} answered with no facts that can be read, and did not say that there are none."
                )
                raise UnreadableMemories(message, provider=model.info.provider)
            return tuple(change for change in changes if not find_secrets(change.text))
        raise SummaryFailed("the provider accepts no transcript, however short")


def _problem_of(material: Material) -> Callable[[str], str | None]:
    return lambda text: facts_problem(text, material)


def _request(agent: Agent, model: SummaryModel, material: Material, passage: Passage, limit: int) -> LlmRequest:
    settings = agent.memory_extraction or MemoryExtractionSettings()
    prompt = settings.prompt or summary_prompt("facts")
    instruction = format_instruction(FACTS_FORMAT, model.info)
    if instruction is not None:
        prompt = f"{prompt}\n\n{instruction}"
    earlier = transcript(passage.earlier, _EARLIER_CHARACTERS) if passage.earlier else ""
    newest = passage.messages[-1]

    def message(role: Role, text: str) -> Message:
        id_ = derive_id("message", newest.id, "facts", role.value)
        return Message(id=id_, role=role, created_at=newest.created_at, content=(TextPart(text),))

    request = LlmRequest(
        model=model.info,
        settings=model.settings,
        messages=(message(Role.SYSTEM, prompt), message(Role.USER, material.render(limit, earlier, "Just before"))),
        time_zone=agent.time_zone,
        is_verbatim=True,
    )
    return replace(request, response_format=FACTS_FORMAT)
