"""The name of the speaker at the beginning of a text."""

from __future__ import annotations

import re
from typing import Final

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
