"""A search by words without an index: texts are compared one by one, with the word analysis of the indexes."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from mnemesh_retrieval.index import WordMatch
from mnemesh_retrieval.words.sparse import document_vector, query_numbers


class WordQuery:
    """The words of a query.

    Example:
        >>> query = WordQuery("running children")
        >>> query.match(id_, "the child ran")
        WordMatch(…)
    """

    def __init__(self, text: str) -> None:
        self._words = query_numbers(text)

    def match(self, id_: str, text: str) -> WordMatch | None:
        """Returns the words of the query that the text of a point has, as an index would; None if it has none.

        The score does not know how rare a word is: it is the sum of the weights.
        """
        found = self.words_of(text)
        point = UUID(id_)
        return WordMatch(point, sum(found.values()), found) if found else None

    def words_of(self, text: str) -> Mapping[int, float]:
        """Returns the words of the query that a text has, with their weights; see `WordMatch.words`."""
        if not self._words:
            return {}
        weights = document_vector(text)
        return {self._words[number]: weights[number] for number in self._words.keys() & weights.keys()}
