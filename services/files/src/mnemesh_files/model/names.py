"""Names of folders and files: Unicode NFC, one line, no path, no invisible characters.

A name is part of prompts and citations, and the model writes it back. So it has one form for what looks the same to
Unicode (NFC), and no character that is invisible or changes the direction of the text around it. Letters of different
scripts that look alike, such as Latin "a" and Cyrillic "а", are different letters; such names are different names.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from mnemesh_kit.errors import InvalidArgument

MAX_NAME_CHARS: Final = 255
_SEPARATORS: Final = re.compile(r"[/\\]")
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Joiners are letters' shapes in Persian, Indic scripts and emoji. They do not change the direction of a text.
_JOINERS: Final = frozenset("\u200c\u200d")


def valid_name(name: str, field: str) -> str:
    """Returns a name in NFC, without white space at its ends.

    Raises:
        InvalidArgument: it is blank, too long, "." or "..", or has a path separator, a control character, or another
            character that is invisible or changes the direction of text.
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise InvalidArgument(f"{field} must not be blank.", field=field)
    if len(name) > MAX_NAME_CHARS:
        raise InvalidArgument(f"{field} must be at most {MAX_NAME_CHARS} characters.", field=field)
    if name in (".", ".."):
        raise InvalidArgument(f'{field} must not be "." or "..".', field=field)
    if _SEPARATORS.search(name):
        raise InvalidArgument(f'{field} must not contain "/" or "\\".', field=field)
    for char in name:
        if unicodedata.category(char) in _REFUSED_CATEGORIES and char not in _JOINERS:
            raise InvalidArgument(
                f"{field} must not contain the character U+{ord(char):04X}, which is invisible or a control character.",
                field=field,
            )
    return name


def without_directories(name: str) -> str:
    """Returns the last part of a path of a client, of any operating system."""
    return _SEPARATORS.split(name.rstrip("/\\"))[-1]


def suffixed(name: str, number: int) -> str:
    """Returns the name of a duplicate: `name_(1).txt`. The stem is cut if the name would be too long."""
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension) > 20:
        stem, dot, extension = name, "", ""
    ending = f"_({number}){dot}{extension}"
    return stem[: MAX_NAME_CHARS - len(ending)] + ending
