"""Bounds of a JSON text that are checked before it is decoded: how many values it has, and how deep they are nested.

A decoded value takes up to a hundred times the bytes of its text, and each takes time in what reads it. The checks copy
the text a few times and look at no character in Python, so that they cost less than decoding.
"""

from itertools import accumulate
from typing import Final

from mnemesh_kit.errors import InvalidArgument, ResourceExhausted

MAX_DEPTH: Final = 200
"""The deepest nesting. Schemas of tools and carried JSON are far below it, and so is Python's limit of recursion."""
_OUTSIDE: Final = bytes(set(range(256)) - set(b",[]{}"))
_BRACKETS: Final = b"[]{}"
_STEP: Final = [1 if byte in b"[{" else -1 for byte in range(256)]


class TooManyValues(ResourceExhausted):
    """A JSON text has more values than its reader takes."""

    reason = "BODY_TOO_LARGE"


class NestedTooDeeply(InvalidArgument):
    """The lists and objects of a JSON text are within each other too often."""


def require_bounded_json(text: bytes, max_values: int, max_depth: int = MAX_DEPTH) -> None:
    """Checks a JSON text in UTF-8 that may be malformed: a decoder refuses what this function cannot judge.

    Args:
        text: the text.
        max_values: the largest number of values in lists and objects.
        max_depth: the largest number of lists and objects within each other.

    Raises:
        TooManyValues: it has more values.
        NestedTooDeeply: they are nested more deeply.
    """
    opened = text.count(b"[") + text.count(b"{")
    if opened <= max_depth and opened + text.count(b",") <= max_values:
        return
    marks = _marks(text, max_values)
    # Each value but the first of a list or object has a comma before it.
    if len(marks) - marks.count(b"]") - marks.count(b"}") > max_values:
        raise _too_many(max_values)
    if max(accumulate(map(_STEP.__getitem__, marks.replace(b",", b""))), default=0) > max_depth:
        raise NestedTooDeeply(f"The JSON is nested too deeply: at most {max_depth} levels are read.")


def _marks(text: bytes, max_values: int) -> bytes:
    """Returns the commas and brackets outside of strings, in their order."""
    # Strings are the only places of backslashes. Without pairs of them, a backslash before a quote escapes it.
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value has at most two strings: its key and itself.
    if text.count(b'"') > 4 * (max_values + 1):
        raise _too_many(max_values)
    return b"".join(text.split(b'"')[::2]).translate(None, _OUTSIDE)


def _too_many(max_values: int) -> TooManyValues:
    return TooManyValues(
        f"The JSON has more than {max_values:,} values, which is the most that is read. Send less at once.",
        limit=str(max_values),
    )
