"""The memory that recall holds of an agent: as material of an extraction, and at the head of a window."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.clients.recall import EpisodesClient
from mnemesh_orchestrator.compaction.planner import CompactionRequest, Cut, Summary, count_turns, split_turns
from mnemesh_orchestrator.compaction.transcript import SUMMARY_NOTE, summary_text
from mnemesh_orchestrator.model.episodes import Change, Episode, EpisodeCommit, Fact, MemoryBundle, MemoryScope

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

    async def shown(self, request: CompactionRequest) -> MemoryBundle:
        """Returns the memories that a window may show: of the agent, of the scopes that it shares, and of the only
        identity, the group and the conversation of the window.

        Raises:
            MnemeshError: recall cannot be read.
        """
        return await self.episodes.bundle(request.memory.found, SHOWN_EPISODES, SALIENT_FACTS)

    async def head(self, request: CompactionRequest, cut: Cut) -> "MemoryHead":
        """Returns the memory for the head of a window; that of the present window if recall cannot be read."""
        try:
            return MemoryHead(await self.shown(request))
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
