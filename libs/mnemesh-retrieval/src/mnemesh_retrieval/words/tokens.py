"""The words of a text, before stemming: in lower case, composed, without apostrophes."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

from mnemesh_retrieval.words.cjk import CJK_RUN

WORD_CHARACTERS: Final = 256
"""The length to which a word is cut. PostgreSQL ignores words of more than 2,046 bytes."""
_WORD: Final = re.compile(r"[^\W_]+")
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
_MARKS: Final = re.compile("[\u0300-\u036f]+")
_SYMBOLS: Final = re.compile(r"[^\w\s]{32,}")
"""Contains no letter. Unicode's normal form of many combining marks takes time that grows with their square."""
_LONG_SYMBOLS: Final = re.compile(r"([^\w\s\x00-\x7f]{32})[^\w\s\x00-\x7f]+")
_APOSTROPHES: Final = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u2032\uff07", "'"))
_NEGATION: Final = re.compile(r"([^\W\d_]+)n't\b")
_CLITIC: Final = re.compile(r"(?<=[^\W_])'(?:s|d|m|ll|re|ve)\b")
"""The possessive, and short forms of "is", "would", "am", "will", "are" and "have"."""
_NEGATED: Final = {"wo": "will", "sha": "shall", "ca": "can", "ai": "is"}
_PLAIN_LETTERS: Final = str.maketrans(
    {"\u0131": "i", "\u00f8": "o", "\u0111": "d", "\u0142": "l", "\u00e6": "ae", "\u0153": "oe", "\u00f0": "d",
     "\u00fe": "th", "\u00df": "ss"}
)  # fmt: skip
"""Latin letters that Unicode does not decompose."""


def words_of(text: str) -> list[str]:
    """Returns the words of a text, in order. Each Kana or Han character is a word.

    Words are in lower case, with their accents. Full-width letters and ligatures become plain letters, "won't" is "will
    not", "don't" is "do not", and "Anna's" is "anna".
    """
    lowered = _without_apostrophes(_lowered(text))
    if lowered.isascii():
        found = _ASCII_WORD.findall(lowered)
    else:
        found = _WORD.findall(CJK_RUN.sub(lambda run: f" {' '.join(run.group())} ", lowered))
    return found if len(lowered) <= WORD_CHARACTERS else [word[:WORD_CHARACTERS] for word in found]


def query_words_of(query: str) -> list[str]:
    """Returns the words of a query like `words_of`. A run of Kana or Han characters is one word."""
    found: list[str] = []
    for word in _WORD.findall(_without_apostrophes(_lowered(query))):
        parts = [word] if word.isascii() else CJK_RUN.sub(r" \g<0> ", word).split()
        found += [part[:WORD_CHARACTERS] for part in parts]
    return found


def folded(word: str) -> str:
    """Returns a word in lower case without accents."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFD", word.translate(_PLAIN_LETTERS))
    return unicodedata.normalize("NFC", _MARKS.sub("", decomposed))


def normal_form(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Returns a text in a normal form of Unicode, in linear time: of a long run of symbols the first 32 are kept."""
    return unicodedata.normalize(form, _LONG_SYMBOLS.sub(r"\1", text))


def _lowered(text: str) -> str:
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKC", _SYMBOLS.sub(" ", text)).casefold()
    composed = unicodedata.normalize("NFC", plain).translate(_APOSTROPHES)
    # One ligature may stand for 18 letters.
    return _MARKS.sub("", composed[: 2 * len(text) + WORD_CHARACTERS])


def _without_apostrophes(text: str) -> str:
    if "'" not in text:
        return text
    if "n't" in text:
        text = _NEGATION.sub(lambda found: f"{_NEGATED.get(found[1], found[1])} not", text)
    return _CLITIC.sub("", text)
