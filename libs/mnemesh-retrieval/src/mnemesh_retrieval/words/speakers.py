"""The name of the speaker at the beginning of a text, and the names of speakers in queries."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from mnemesh_retrieval.words.analysis import STOP_WORDS, folded, indexed
from mnemesh_retrieval.words.languages import DEFAULT

_NAME: Final = r"[^\W\d_][\w'’.-]*"
_SPEAKER: Final = re.compile(rf"\s*({_NAME}(?: {_NAME}){{0,2}})(?::[ \t]+|：\s*)(?=\S)")
_MAX_NAME: Final = 40
_MAX_FOLDED_WORDS: Final = 2


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


_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019]s\b)?")


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
