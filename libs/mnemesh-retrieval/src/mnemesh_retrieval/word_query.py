"""A search by words without an index: texts are compared one by one, with the word analysis of the indexes."""

from __future__ import annotations

from functools import cache
from uuid import UUID

from mnemesh_retrieval.edge.bm25 import Bm25Encoder
from mnemesh_retrieval.index import WordMatch
from mnemesh_retrieval.ranking import word_match


class WordQuery:
    """The words of a query.

    Example:
        >>> query = WordQuery("running children")
        >>> query.match(id_, "the child ran")
        WordMatch(…)
    """

    def __init__(self, text: str) -> None:
        self._encoder = _encoder()
        words = self._encoder.query(text)
        self._words = frozenset(words.indices) if words is not None else frozenset()
        self._forms = self._encoder.forms(text) if self._words else {}

    def match(self, id_: str, text: str) -> WordMatch | None:
        """Returns the words of the query that the text of a point has, as an index would; None if it has none.

        The score does not know how rare a word is: it is the sum of the weights.
        """
        if not self._words:
            return None
        document = self._encoder.document(text)
        if self._words.isdisjoint(document.indices):
            return None
        point = UUID(id_)
        found = word_match(point, 0.0, tuple(self._words), self._forms, document.indices, document.values)
        return WordMatch(point, sum(found.words.values()), found.words)


@cache
def _encoder() -> Bm25Encoder:
    return Bm25Encoder()
