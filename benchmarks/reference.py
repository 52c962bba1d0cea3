"""Full-text search for comparison: plain FTS5, and the best configuration of FTS5 that was found for dialogues.

The latter removes stop words from the query, and adds a second column of half the weight to each text, with the two
texts before and the two after it in the same session.
"""

import re
import sqlite3
from collections.abc import Sequence
from typing import Final

from mnemesh_retrieval.words.analysis import STOP_WORDS

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
