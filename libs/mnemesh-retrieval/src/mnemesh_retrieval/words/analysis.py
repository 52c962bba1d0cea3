"""The words of texts and queries, as word indexes store and search them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import resources
from itertools import islice, pairwise
from typing import Final

from mnemesh_retrieval.words.cjk import CJK_CHARACTER
from mnemesh_retrieval.words.languages import LANGUAGES, language_of
from mnemesh_retrieval.words.stemming import LIBRARY, stem
from mnemesh_retrieval.words.tokens import folded, query_words_of, words_of

VERSION: Final = f"3 {LIBRARY}"
"""The version of the analysis. Word indexes of another version are rebuilt. Increase the number when the words of any
text change; the version of the library is part of it, because new releases change stems."""
INDEXED_CHARACTERS: Final = 100_000
"""The length of the part of a text that is indexed. PostgreSQL limits the words of a document to 1 MB."""
MAX_TERMS: Final = 64

STOP_WORDS: Final = frozenset(
    (resources.files("mnemesh_retrieval.words") / "stop_words.txt").read_text(encoding="utf-8").split()
)


def analysed(text: str, limit: int = INDEXED_CHARACTERS, language: str | None = None) -> tuple[list[str], str]:
    """Returns the words of a text as indexes store them, and its language.

    Args:
        text: the text.
        limit: the length of the part of the text that is analysed.
        language: the language of a text of which this is a part; by default that of this text.
    """
    words = words_of(text[:limit])
    language = language or language_of(words, text[:limit])
    return [stem(word, language) for word in words], language


def indexed(text: str, limit: int = INDEXED_CHARACTERS, language: str | None = None) -> str:
    """Returns the words of a text as the index stores them: folded, stemmed, separated by single spaces."""
    return " ".join(analysed(text, limit, language)[0])


def text_language(text: str) -> str:
    """Returns the language in which a text is analysed."""
    read = text[:INDEXED_CHARACTERS]
    return language_of(words_of(read), read)


def terms(query: str, languages: Collection[str] = ()) -> dict[str, str]:
    """Returns the terms of a query, which are combined by OR: words, or phrases of words, in the form of `indexed`.

    A word has a term for each language of the index: any form of it that is in a text finds the text, whatever the
    language of the query. Stop words are left out unless the query has no other word. A term consists of letters,
    digits and single spaces, so it needs no quoting in any query language.

    Args:
        query: the query.
        languages: the languages of indexed texts beside English.

    Returns:
        At most 64 terms, each with the English term of its word. Terms of one word count as one word, of which a text
        has at most one: the rarity of each is that of all.
    """
    words = [term for word in _significant(query) for term in _phrases(word)]
    return dict(islice(_stems(words, languages).items(), MAX_TERMS))


def query_words(query: str) -> dict[str, str]:
    """Returns the first 64 words of a query for an index without phrases, in all languages; else like `terms`."""
    words = dict.fromkeys(part for word in _significant(query) for part in _characters(word))
    return _stems(list(islice(words, MAX_TERMS)), LANGUAGES)


def _significant(query: str) -> list[str]:
    found = list(dict.fromkeys(query_words_of(query[:INDEXED_CHARACTERS])))
    return [word for word in found if folded(word) not in STOP_WORDS] or found


def _stems(words: Sequence[str], languages: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        own = found.setdefault(stem(word), stem(word))
        for language in languages:
            found.setdefault(stem(word, language), own)
    return found


def _phrases(word: str) -> list[str]:
    """Returns a word; the pairs of characters of a run of Kana or Han, each as a phrase."""
    if word.isascii() or len(word) == 1 or not CJK_CHARACTER.match(word):
        return [word]
    return [" ".join(pair) for pair in pairwise(word)]


def _characters(word: str) -> Sequence[str]:
    return word if CJK_CHARACTER.match(word) else (word,)
