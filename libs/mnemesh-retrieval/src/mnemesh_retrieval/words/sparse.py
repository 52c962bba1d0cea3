"""Words as sparse vectors, with the names of speakers: BM25 without the rarity of words, which an index applies."""

import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from mnemesh_retrieval.index import WordMatch
from mnemesh_retrieval.words import analysis
from mnemesh_retrieval.words.analysis import STOP_WORDS, analysed, folded, indexed, query_words, text_language
from mnemesh_retrieval.words.languages import DEFAULT

_NAME: Final = r"[^\W\d_][\w'’.-]*"
_SPEAKER: Final = re.compile(rf"\s*({_NAME}(?: {_NAME}){{0,2}})(?::[ \t]+|：\s*)(?=\S)")
_MAX_NAME: Final = 40
_MAX_FOLDED_WORDS: Final = 2
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019]s\b)?")
VERSION: Final = f"{analysis.VERSION} 2"
"""The version of the words and of their weights. Indexes of sparse vectors of another version are renewed. Increase the
last number when the weight of any word changes."""
AVERAGE_LENGTH: Final = 64.0
"""The number of words of an average document. Messages and passages are short."""
SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.3
"""BM25's k1 and b, the defaults of the ranking. Weights are stored, so a ranking file does not change them."""


def split_speaker(text: str, *, is_folded: bool = False) -> tuple[str, str]:
    """Returns the name of the speaker at the beginning of a text, "" without one, and the rest of the text.

    A name has up to three words, none of them in lower case; in a text that is folded to lower case, up to two words.
    """
    found = _SPEAKER.match(text)
    if found is None or len(found[1]) > _MAX_NAME:
        return "", text
    words = found[1].split()
    if len(words) > _MAX_FOLDED_WORDS if is_folded else any(word[0].islower() for word in words):
        return "", text
    return found[1], text[found.end() :]


def name_words(name: str) -> frozenset[str]:
    """Returns the words of a name as indexes store them. A name has no language: "Tom" is also a word of Czech."""
    return frozenset(indexed(name, language=DEFAULT).split())


def without_names(query: str, names: Collection[str]) -> str:
    """Returns a query without names; the query itself if nothing but stop words would be left.

    An embedder that averages the words of a text finds every short message of a speaker similar to a query that names
    the speaker.

    Args:
        query: the query.
        names: the words of the names, as `name_words` returns them.
    """
    known = frozenset(names)
    named = {word for word in set(_WORD.findall(query)) if name_words(word) & known} if known else set()
    if not named:
        return query
    rest = _WORD.sub(lambda found: "" if found[0] in named else found[0], query)
    is_about = any(folded(word.lower()) not in STOP_WORDS for word in re.findall(r"[^\W_]+", rest))
    return rest if is_about else query


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
