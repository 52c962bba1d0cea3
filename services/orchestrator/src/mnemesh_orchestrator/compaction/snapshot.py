"""What stands at the head of an episodic window: the newest episodes and the most salient facts, as text.

Pure: the same memory and the same commits give the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from mnemesh_orchestrator.model.episodes import Change, Episode, EpisodeCommit, Fact, MemoryBundle

EPISODES: Final = 3
FACTS: Final = 20
_LONGEST_ITEM: Final = 2_000
EPISODIC_HEADING: Final = "[MEMORY:EPISODIC]"
_SEMANTIC_HEADING: Final = "[MEMORY:SEMANTIC]"
_RECENT_HEADING: Final = "[RECENT TURNS]"
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Lines of a snapshot: episodes with the oldest first, facts with the first to be named first."""

    episodes: tuple[str, ...]
    facts: tuple[str, ...]
    turns: int

    def text(self) -> str:
        episodes = (f"{place}) {line}" for place, line in enumerate(self.episodes, 1))
        sections = [
            "\n".join((EPISODIC_HEADING, *episodes)) if self.episodes else "",
            "\n".join((_SEMANTIC_HEADING, *(f"- {line}" for line in self.facts))) if self.facts else "",
            f"{_RECENT_HEADING}\nThe last {self.turns} follow as messages." if self.turns else "",
        ]
        return "\n\n".join(filter(None, sections))


def snapshot(bundle: MemoryBundle, turns: int, fits: Callable[[str], bool]) -> str:
    """The text, short enough for `fits`: older episodes give way first, then the last facts, then the episode's end.

    `turns` is how many whole turns stay in the window behind it.
    """
    shown = _Shown(
        tuple(_line(episode.summary) for episode in bundle.episodes[-EPISODES:]),
        tuple(_line(fact.text) for fact in ranked(bundle.facts)[:FACTS]),
        turns,
    )
    while not fits(text := shown.text()):
        if len(shown.episodes) > 1:
            shown = replace(shown, episodes=shown.episodes[1:])
        elif shown.facts:
            shown = replace(shown, facts=shown.facts[:-1])
        elif shown.episodes and len(shown.episodes[0]) > 1:
            line = shown.episodes[0].removesuffix("…")
            shown = replace(shown, episodes=(line[: len(line) // 2] + "…",))
        else:
            break
    return text


def ranked(facts: Sequence[Fact]) -> list[Fact]:
    """The most salient first, of those the newest, of those the least id."""
    by_id = sorted(facts, key=lambda fact: fact.id)
    return sorted(by_id, key=lambda fact: (fact.salience, fact.created_at), reverse=True)


def with_commits(bundle: MemoryBundle, commits: Sequence[EpisodeCommit]) -> MemoryBundle:
    """The memory as it will be once the commits are kept, in their order."""
    known = [*(episode.created_at for episode in bundle.episodes), *(fact.created_at for fact in bundle.facts)]
    now = max(known, default=_EARLIEST) + timedelta(microseconds=1)
    episodes, facts = list(bundle.episodes), {fact.id: fact for fact in bundle.facts}
    held = {_key(fact.text) for fact in bundle.facts}
    for place, commit in enumerate(commits):
        made = commit.episode
        episodes.append(Episode(f"new-{place:04d}", made.summary, now, made.tags, made.salience))
        for number, change in enumerate(commit.changes):
            if change.change is Change.CONFIRM or (change.change is Change.ADD and _key(change.text) in held):
                continue
            replaced = None if change.fact_id is None else facts.pop(change.fact_id, None)
            if replaced is not None:
                held.discard(_key(replaced.text))
            tags = change.tags or (replaced.tags if replaced else ())
            if change.ended_at is not None:
                continue
            held.add(_key(change.text))
            # What has no id yet comes in the order in which it was named.
            id_ = f"new-{place:04d}-{number:04d}"
            facts[id_] = Fact(id_, change.text, now, tags, change.salience, change.told_at)
    return MemoryBundle(tuple(episodes), tuple(facts.values()))


def _key(text: str) -> str:
    """Equal for texts that recall takes for the same fact."""
    return " ".join(text.casefold().split())


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_ITEM else f"{line[:_LONGEST_ITEM]}…"
