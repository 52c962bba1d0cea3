"""Scores searches for the evidence of questions."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.datasets import Dialogue, Question
from benchmarks.memory.tiers import Configuration, Tier
from benchmarks.metrics import Outcome, Scores, by_category, outcome, scores

Level = Literal["turn", "session"]
_SESSION_HITS = 100
"""The number of turns that are searched to rank sessions."""


@dataclass(slots=True)
class Row:
    """The outcomes of one configuration of one tier on one engine."""

    tier: str
    engine: str
    configuration: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    reranked: int = 0
    """The number of searches that a reranker ordered."""

    def as_json(self, depths: Sequence[int]) -> dict[str, Any]:
        """Returns the scores, of all questions and of each category."""
        groups = by_category(self.outcomes)
        return {
            "tier": self.tier,
            "engine": self.engine,
            "configuration": self.configuration,
            "scores": scores_as_json(scores(self.outcomes, depths)),
            "categories": {name: scores_as_json(scores(group, depths)) for name, group in groups.items()},
            "p50_ms": _quantile_ms(self.seconds, 0.5),
            "p95_ms": _quantile_ms(self.seconds, 0.95),
            "reranked": self.reranked / max(1, len(self.outcomes)),
            "questions": [
                {"dialogue": each.dialogue, "question": each.question, "ranks": each.ranks} for each in self.outcomes
            ],
        }


async def score(
    tier: Tier,
    engine: str,
    dialogues: Sequence[Dialogue],
    configurations: Mapping[str, Configuration],
    depths: Sequence[int],
    level: Level = "turn",
) -> list[Row]:
    """Stores each dialogue, and searches there for every question that has evidence, in every configuration."""
    rows = {name: Row(tier.name, engine, name) for name in configurations}
    for dialogue in dialogues:
        asked = dialogue.questions_with_evidence()
        if not asked:
            continue
        await tier.store(dialogue)
        sessions = {turn.id: session.id for session in dialogue.sessions for turn in session.turns}
        grouped = sessions if level == "session" else {}
        for name, how in configurations.items():
            for question in asked:
                await _ask(rows[name], tier, dialogue, question, how, max(depths), grouped)
    return list(rows.values())


async def _ask(
    row: Row,
    tier: Tier,
    dialogue: Dialogue,
    question: Question,
    how: Configuration,
    depth: int,
    sessions: Mapping[str, str],
) -> None:
    started = time.perf_counter()
    found = await tier.search(dialogue, question, how, _SESSION_HITS if sessions else depth)
    row.seconds.append(time.perf_counter() - started)
    row.reranked += found.reranked
    hits = [sessions.get(turn, turn) for turn in found.turns]
    evidence = {sessions.get(turn, turn) for turn in question.evidence}
    row.outcomes.append(outcome(dialogue.id, question.id, question.category, hits, evidence))


def scores_as_json(found: Scores) -> dict[str, Any]:
    """Returns scores as JSON, with the depths as strings."""
    return {
        "any_at": {str(depth): asdict(each) for depth, each in found.any_at.items()},
        "all_at": {str(depth): asdict(each) for depth, each in found.all_at.items()},
        "reciprocal_rank": asdict(found.reciprocal_rank),
    }


def _quantile_ms(seconds: Sequence[float], part: float) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000, 2) if ordered else 0.0
