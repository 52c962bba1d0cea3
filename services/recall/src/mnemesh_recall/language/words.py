"""Words as full-text search knows them: one analysis for both SQL engines, and the terms of a query."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise
from typing import Final

from mnemesh_recall.language.stemming import stem

INDEXED_CHARACTERS: Final = 100_000
"""So much of a message's text is indexed; PostgreSQL bounds a document's words to 1 MB."""
MAX_TERMS: Final = 64

_WORD: Final = re.compile(r"[^\W_]+")
# Han, kana and their extensions are written without spaces: each character is a word, a query's pairs are phrases.
_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

STOP_WORDS: Final = frozenset(
    (resources.files("mnemesh_recall.language") / "stop_words.txt").read_text(encoding="utf-8").split()
)


def indexed(text: str, limit: int = INDEXED_CHARACTERS) -> str:
    """The words of a text, folded, stemmed and parted by single spaces: what full-text indexes store."""
    return " ".join(map(stem, _words(text[:limit])))


def terms(query: str) -> tuple[str, ...]:
    """What a query looks for, OR-ed: words, or phrases of words that follow each other, as `indexed` writes them.

    Stop words are left out unless there is nothing else. Each term is words of letters and digits and single spaces,
    so it needs no quoting in any query language.
    """
    found = dict.fromkeys(_terms(query))
    telling = [term for term in found if term not in STOP_WORDS] or list(found)
    return tuple(dict.fromkeys(map(stem, telling)))[:MAX_TERMS]


def _terms(query: str) -> Iterator[str]:
    for word in _WORD.findall(_folded(query)):
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
    folded = _folded(text)
    if not folded.isascii():
        folded = _UNSPACED.sub(r" \g<0> ", folded)
    yield from _WORD.findall(folded)


def _spaced(word: str) -> str:
    """A word's characters: `ab東京cd` gives `ab  東 京  cd`, two spaces between runs of a kind."""
    return re.sub(rf"(?:{_UNSPACED.pattern})+", lambda run: f"  {' '.join(run.group())}  ", word).strip()


def _folded(text: str) -> str:
    """Lower case without accents; compatible forms (full-width letters, ligatures) as their plain ones."""
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(character for character in apart if not "\u0300" <= character <= "\u036f")
    return unicodedata.normalize("NFC", bare)
