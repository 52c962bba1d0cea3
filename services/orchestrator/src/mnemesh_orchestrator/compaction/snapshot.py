"""The text at the head of an episodic window: the latest episodes and the most salient facts.

Pure: the same memory and commits give the same bytes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from mnemesh_orchestrator.model.episodes import Change, Episode, EpisodeCommit, Fact, MemoryBundle

EPISODES: Final = 3
FACTS: Final = 20
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
        tuple(_line(episode.summary) for episode in bundle.episodes[-EPISODES:]),
        tuple(_line(fact.text) for fact in rank_facts(bundle.facts)[:FACTS]),
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
