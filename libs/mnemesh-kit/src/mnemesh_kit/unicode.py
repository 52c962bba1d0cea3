"""Texts of models, tools and providers in a form that every store, log and wire can carry.

A text is well-formed if it is valid Unicode without NUL characters. A lone surrogate, which is half of a character, is
valid in a Python or JavaScript string, but in neither UTF-8 nor protobuf; PostgreSQL cannot store NUL.
"""

import re
from typing import Any, Final

MAX_TEXT_BYTES: Final = 1 << 20
"""The largest number of bytes of a stored text."""

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_CUT_NOTE: Final = "\n[The text was cut here: it has {size:,} bytes, and at most {limit:,} are kept.]"
# Every escape of a JSON text is matched, so that the backslashes of "\\ud800" are not taken for the start of "\ud800".
_JSON_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|(?P<nul>u0000)|.)",
    re.DOTALL,
)


def well_formed(text: str, max_bytes: int | None = None) -> str:
    """Returns `text` with each lone surrogate and each NUL character replaced by U+FFFD.

    The two halves of a character become the character. A well-formed text is returned unchanged.

    Args:
        text: the text.
        max_bytes: the largest number of bytes of the result in UTF-8. A longer text is cut, and a note says so.
    """
    if text.isascii() and (max_bytes is None or len(text) <= max_bytes) and "\0" not in text:
        return text
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        encoded = text.encode()
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
        encoded = text.encode()
    if max_bytes is None or len(encoded) <= max_bytes:
        return text
    note = _CUT_NOTE.format(size=len(encoded), limit=max_bytes)
    return encoded[: max(0, max_bytes - len(note))].decode(errors="ignore") + note[:max_bytes]


def truncated(text: str, size: int) -> str:
    """Returns `text`, well-formed, if it has at most `size` bytes in UTF-8, else its beginning and an ellipsis."""
    text = well_formed(text)
    encoded = text.encode()
    return text if len(encoded) <= size else encoded[: size - 3].decode(errors="ignore") + "…"


def well_formed_json(text: str) -> str:
    r"""Returns a JSON text, which may be incomplete, without lone surrogates and NUL characters.

    Escapes such as ``\ud800`` and ``\u0000`` become the escape of U+FFFD, so that the decoded strings are well-formed
    too.
    """
    text = well_formed(text)
    return _JSON_ESCAPE.sub(_mended, text) if "\\u" in text else text


def has_lone_surrogate(json_text: str) -> bool:
    """Returns whether a JSON text has an escape of a lone surrogate. JSON decoders differ in what they do with one."""
    return "\\u" in json_text and any(escape["lone"] for escape in _JSON_ESCAPE.finditer(json_text))


class PieceJoiner:
    """Makes a text well-formed that arrives in pieces. A character that is split between two pieces is kept.

    Example:
        >>> joiner = PieceJoiner()
        >>> joiner.add("a\\ud83d"), joiner.add("\\ude00b"), joiner.end()
        ('a', '😀b', '')
    """

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """Returns the next piece of the well-formed text. The first half of a character waits for the second."""
        if self._half:
            piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return well_formed(piece)

    def end(self) -> str:
        """Returns the rest: U+FFFD if the last piece ended with half of a character."""
        rest, self._half = self._half, ""
        return well_formed(rest)


def _mended(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape["lone"] or escape["nul"] else escape[0]


def well_formed_value(value: Any) -> Any:
    """Returns a decoded JSON value with every string, also those that are keys, made well-formed."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed_value(key): well_formed_value(item) for key, item in value.items()}
        case list():
            return [well_formed_value(item) for item in value]
        case _:
            return value
