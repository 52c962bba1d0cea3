"""The stems of English words: Porter's algorithm, and a table of irregular forms."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from mnemesh_retrieval.lemmas import LEMMAS

_VOWEL: Final = "(?:[aeiou]|(?<=[^aeiou])y)"
_HAS_VOWEL: Final = re.compile("^[^aeiou]*?(?:[aeiou]|(?<=[a-z])y)")
_MEASURED: Final = re.compile(f"{_VOWEL}+[^aeiouy]|{_VOWEL}+(?<=[aeiou])y")
_SHORT: Final = re.compile("[^aeiou][aeiouy][^aeiouwxy]$")
_DOUBLED: Final = re.compile("([^aeioulsz])\\1$")

_SECOND: Final = (
    ("ational", "ate"), ("ization", "ize"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"),
    ("tional", "tion"), ("biliti", "ble"), ("entli", "ent"), ("ousli", "ous"), ("ation", "ate"), ("alism", "al"),
    ("aliti", "al"), ("iviti", "ive"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("alli", "al"),
    ("ator", "ate"), ("logi", "log"), ("bli", "ble"), ("eli", "e"),
)  # fmt: skip
_THIRD: Final = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ness", ""), ("ful", ""),
)  # fmt: skip
_FOURTH: Final = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "ion",
    "al", "er", "ic", "ou",
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Returns the stem of a lower-case English word. Short words, and words with other characters, are unchanged."""
    word = LEMMAS.get(word, word)
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    for step in (_plural, _past, _y_to_i, _second, _third, _fourth, _fifth):
        word = step(word)
    return word


def _measure(stem_: str) -> int:
    return len(_MEASURED.findall(stem_))


def _plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith("ies"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        rest = word.removesuffix(suffix)
        if rest != word and _HAS_VOWEL.match(rest):
            if rest.endswith(("at", "bl", "iz")):
                return rest + "e"
            if _DOUBLED.search(rest):
                return rest[:-1]
            return rest + "e" if _measure(rest) == 1 and _SHORT.search(rest) else rest
    return word


def _y_to_i(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _HAS_VOWEL.match(word[:-1]) else word


def _second(word: str) -> str:
    return _replaced(word, _SECOND)


def _third(word: str) -> str:
    return _replaced(word, _THIRD)


def _replaced(word: str, table: tuple[tuple[str, str], ...]) -> str:
    for suffix, other in table:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + other if _measure(rest) else word
    return word


def _fourth(word: str) -> str:
    for suffix in _FOURTH:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            is_suffix = _measure(rest) > 1 and (suffix != "ion" or rest.endswith(("s", "t")))
            return rest if is_suffix else word
    return word


def _fifth(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _SHORT.search(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
