"""Words as sparse vectors: BM25 without the rarity of words, which an index applies itself."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from mnemesh_retrieval.index import WordMatch
from mnemesh_retrieval.words import analysis
from mnemesh_retrieval.words.analysis import analysed, query_words, text_language
from mnemesh_retrieval.words.speakers import split_speaker

VERSION: Final = f"{analysis.VERSION} 2"
"""The version of the words and of their weights. Indexes of sparse vectors of another version are renewed. Increase the
last number when the weight of any word changes."""
AVERAGE_LENGTH: Final = 64.0
"""The number of words of an average document. Messages and passages are short."""
SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.3
"""BM25's k1 and b, the defaults of the ranking. Weights are stored, so a ranking file does not change them."""


def document_vector(text: str) -> Mapping[int, float]:
    """Returns the weight of each word of a stored text; empty for a text without words.

    Stop words are included, so that a query of only stop words finds them.
    """
    speaker, spoken = split_speaker(text)
    # The name may be a word of another language: "Tom: Swimming!" is English.
    language = text_language(spoken) if speaker else None
    words = analysed(text, len(text), language)[0]
    damping = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * len(words) / AVERAGE_LENGTH)
    counts = Counter(map(number_of, words))
    return {number: count * (SATURATION + 1) / (count + damping) for number, count in counts.items()}


def query_numbers(query: str) -> dict[int, int]:
    """Returns the numbers of the words to search for; empty for a query without words.

    Each has the number of its word of the query: a word has a number for each language, of which a text has one.
    """
    return {number_of(word): number_of(own) for word, own in query_words(query).items()}


def number_of(word: str) -> int:
    """Returns the number of a word in sparse vectors, of 32 bits."""
    return zlib.crc32(word.encode())


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
