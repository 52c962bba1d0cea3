"""The analysis of texts and queries for full-text search, the same for both SQL engines."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise
from typing import Final

from mnemesh_retrieval.lemmas import expanded

from mnemesh_recall.language.stemming import stem

INDEXED_CHARACTERS: Final = 100_000
"""The length of the part of a message that is indexed. PostgreSQL limits the words of a document to 1 MB."""
MAX_TERMS: Final = 64

_WORD: Final = re.compile(r"[^\W_]+")
# Han, kana and their extensions are written without spaces. Each character is a word; a query uses pairs as phrases.
_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

STOP_WORDS: Final = frozenset(
    (resources.files("mnemesh_recall.language") / "stop_words.txt").read_text(encoding="utf-8").split()
)


def indexed(text: str, limit: int = INDEXED_CHARACTERS) -> str:
    """Returns the words of a text as the index stores them: folded, stemmed, separated by single spaces."""
    return " ".join(map(stem, _words(text[:limit])))


def terms(query: str) -> tuple[str, ...]:
    """Returns the terms of a query, which are combined by OR: words, or phrases of words, in the form of `indexed`.

    Stop words are left out unless the query has no other word. A term consists of letters, digits and single spaces,
    so it needs no quoting in any query language.
    """
    found = dict.fromkeys(_terms(query))
    significant = [term for term in found if term not in STOP_WORDS] or list(found)
    return tuple(dict.fromkeys(map(stem, significant)))[:MAX_TERMS]


def _terms(query: str) -> Iterator[str]:
    for word in _WORD.findall(_folded(expanded(query))):
        if word.isascii() or not _UNSPACED.search(word):
            yield word
            continue
        for run in _spaced(word).split("  "):
            characters = run.split()
            if len(characters) > 1:
                yield from (" ".join(pair) for pair in pairwise(characters))
            elif characters:
                yield characters[0]


def _words(text: str) -> Iterator[str]:
    folded = _folded(expanded(text))
    if not folded.isascii():
        folded = _UNSPACED.sub(r" \g<0> ", folded)
    yield from _WORD.findall(folded)


def _spaced(word: str) -> str:
    """Separates the characters of a word: `ab東京cd` becomes `ab  東 京  cd`, with two spaces between scripts."""
    return re.sub(rf"(?:{_UNSPACED.pattern})+", lambda run: f"  {' '.join(run.group())}  ", word).strip()


def _folded(text: str) -> str:
    """Returns a text in lower case without accents. Full-width letters and ligatures become plain letters."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(character for character in decomposed if not "\u0300" <= character <= "\u036f")
    return unicodedata.normalize("NFC", bare)
