"""The stems of words: Snowball's algorithms, and a table of irregular English forms."""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Final

import Stemmer

from mnemesh_retrieval.words.irregular_forms import BASES
from mnemesh_retrieval.words.languages import CODES, DEFAULT
from mnemesh_retrieval.words.tokens import folded

LIBRARY: Final = f"snowball-{Stemmer.version()}"
STEMMED_CHARACTERS: Final = 64
"""Longer words are no words of a language. They stay as they are."""
_LATIN_END: Final = "\u024f"
_LATIN_EXTENDED: Final = ("\u1e00", "\u1eff")
_SCRIPTS: Final = (
    ("\u0370", "\u03ff", "greek"), ("\u1f00", "\u1fff", "greek"), ("\u0400", "\u052f", "russian"),
    ("\u0531", "\u058f", "armenian"), ("\u0620", "\u06ff", "arabic"),
)  # fmt: skip
"""The first and last letters of other scripts, with the algorithm for all words in them."""
_DOUBLED: Final = re.compile(r"(?<=..)([bdgmnprt])\1$")
_FLEETING: Final = re.compile("(?<=[бвгджзйклмнпрстфхцчшщь])[ео](?=[кц]$)")
_algorithms = threading.local()  # a Stemmer must not be used by two threads at once


@lru_cache(maxsize=1 << 16)
def stem(word: str, language: str = DEFAULT) -> str:
    """Returns the stem of a word of a text in a language, without accents.

    The language counts only for words in Latin letters. Stems of all languages but English end with a digit and the
    code of the language, so that a stem never matches an unrelated word of another language. Words in other scripts
    are stemmed by their script; words with digits, and very long ones, have no stem and are the same in all languages.
    """
    if len(word) > STEMMED_CHARACTERS or not word.isalpha():
        return folded(word)
    if word[0] > _LATIN_END and not _LATIN_EXTENDED[0] <= word[0] <= _LATIN_EXTENDED[1]:
        return folded(_of_script(word))
    if language == DEFAULT:
        return _english(folded(word))
    return f"{folded(_snowball(language, word))}9{CODES[language]}"


def _english(word: str) -> str:
    # The algorithm turns "programming" into "program", but "programmer" into "programm".
    found = _snowball(DEFAULT, BASES.get(word, word))
    return _DOUBLED.sub(r"\1", found) if len(found) > len("adding"[:4]) else found


def _of_script(word: str) -> str:
    for first, last, language in _SCRIPTS:
        if first <= word[0] <= last:
            found = _snowball(language, word)
            # Vowels that only some forms have: кошек, кошки.
            return _FLEETING.sub("", found) if language == "russian" and len(found) > len("урок") else found
    return word


def _snowball(language: str, word: str) -> str:
    stemmer: Stemmer.Stemmer | None = getattr(_algorithms, language, None)
    if stemmer is None:
        stemmer = Stemmer.Stemmer(language, 0)
        setattr(_algorithms, language, stemmer)
    return stemmer.stemWord(word) or word
