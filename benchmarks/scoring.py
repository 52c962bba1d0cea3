"""Shares of questions whose evidence is found, of a search and of full-text search for comparison."""

import json
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mnemesh_retrieval.words.analysis import STOP_WORDS

from benchmarks.dialogues import Dialogue, Question, Variant

REACH: Final = 2
_WORD: Final = re.compile(r"\w+")


class FullText:
    """The texts of one agent or archive, by number."""

    def __init__(self, texts: Sequence[str], sessions: Sequence[int]) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE VIRTUAL TABLE texts USING fts5(body, around, tokenize = 'porter unicode61')")
        self._database.executemany(
            "INSERT INTO texts (rowid, body, around) VALUES (?, ?, ?)",
            [(number, text, _around(texts, sessions, number)) for number, text in enumerate(texts)],
        )

    def plain(self, query: str, limit: int) -> list[int]:
        """Ranks by BM25 of the texts alone, with the words of the query joined by OR."""
        return self._best("body : ", _WORD.findall(query), "1.0, 0.0", limit)

    def with_context(self, query: str, limit: int) -> list[int]:
        """Ranks by BM25 of text and context."""
        words = _WORD.findall(query)
        return self._best("", [word for word in words if word.lower() not in STOP_WORDS] or words, "1.0, 0.5", limit)

    def _best(self, column: str, words: Sequence[str], weights: str, limit: int) -> list[int]:
        if not words:
            return []
        quoted = " OR ".join(f'"{word}"' for word in words)
        match = f"{column}({quoted})"
        ranked = f"SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts, {weights}) LIMIT ?"
        return [number for (number,) in self._database.execute(ranked, (match, limit))]


def _around(texts: Sequence[str], sessions: Sequence[int], number: int) -> str:
    nearby = range(max(0, number - REACH), min(len(texts), number + REACH + 1))
    return " ".join(texts[each] for each in nearby if each != number and sessions[each] == sessions[number])


DEPTHS: Final = (1, 5, 10)


@dataclass(slots=True)
class Scores:
    """Ranks of the best evidence of each question, by kind; None if it was not among the hits."""

    ranks: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(list))
    seconds: list[float] = field(default_factory=list)

    def note(self, kind: str, found: Sequence[Any], evidence: frozenset[Any], started: float) -> None:
        """Records the result of a search that started at `started`."""
        self.seconds.append(time.perf_counter() - started)
        self.ranks[kind].append(next((rank for rank, id_ in enumerate(found, start=1) if id_ in evidence), None))

    def share(self, depth: int, kind: str | None = None) -> float:
        """Returns the share of questions with evidence among the first `depth` hits."""
        ranks = self.ranks[kind] if kind else [rank for ranks in self.ranks.values() for rank in ranks]
        return sum(rank is not None and rank <= depth for rank in ranks) / max(1, len(ranks))

    def row(self, **what: str) -> dict[str, Any]:
        """Returns the figures with their labels."""
        return {
            **what,
            "found_at": {str(depth): round(self.share(depth), 3) for depth in DEPTHS},
            "found_at_5_by_kind": {kind: round(self.share(5, kind), 3) for kind in sorted(self.ranks)},
            "p50_ms": round(sorted(self.seconds)[len(self.seconds) // 2] * 1000, 2),
        }


def references(dialogues: Sequence[Dialogue], variant: Variant) -> dict[str, Scores]:
    """Returns the scores of FTS5 in the same texts, plain and with context."""
    found = {"plain": Scores(), "context": Scores()}
    for dialogue in dialogues:
        texts = FullText(variant.texts(dialogue), [turn.session for turn in dialogue.turns])
        for question in dialogue.questions:
            for way, search in (("plain", texts.plain), ("context", texts.with_context)):
                _ask(found[way], question, search)
    return found


def _ask(scores: Scores, question: Question, search: Any) -> None:
    started = time.perf_counter()
    scores.note(question.kind, search(question.text, DEPTHS[-1]), question.evidence, started)


def line(row: dict[str, Any]) -> str:
    """Returns a printable line."""
    names = "".join(f"{row[name]:<15}" for name in ("set", "engine", "embedder", "mode"))
    shares = " ".join(f"{share:.3f}" for share in row["found_at"].values())
    kinds = " ".join(f"{kind} {share:.2f}" for kind, share in row["found_at_5_by_kind"].items())
    return f"{names} {shares}   at 5: {kinds}   {row['p50_ms']} ms"


def write(rows: Sequence[dict[str, Any]], path: Path | None) -> None:
    """Writes the rows as JSON, if a path is arguments."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=2) + "\n")
