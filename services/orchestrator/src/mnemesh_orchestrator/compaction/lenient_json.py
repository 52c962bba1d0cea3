"""Reads the JSON object of an answer that is more, or less, than one: wrapped in words, or cut off."""

import json
from typing import Any, Final

_DECODER: Final = json.JSONDecoder(strict=False)
_CLOSING: Final = {"{": "}", "[": "]"}
_DEEPEST: Final = 100
"""No answer is nested deeper; what is, is not copied at every bracket."""


def object_in(text: str) -> dict[str, Any]:
    """The object that begins at the first brace; of one that is cut off, what was whole. Empty where there is none.

    Takes time in proportion to the text, whatever it is.
    """
    begin = text.find("{")
    if begin < 0:
        return {}
    for candidate in (text, _closed(text, begin)):
        try:
            value = _encodable(_DECODER.raw_decode(candidate, begin)[0])
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _encodable(value: Any) -> Any:
    """The value with question marks for halves of surrogate pairs, which no store takes."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _closed(text: str, begin: int) -> str:
    """The text up to the last inner value that was closed, and what closes the outer ones."""
    still_open: list[str] = []
    whole, rest = begin, ""
    is_string = is_escaped = False
    for place in range(begin, len(text)):
        character = text[place]
        if is_string:
            is_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            is_string = True
        elif character in _CLOSING:
            still_open.append(_CLOSING[character])
        elif still_open and character == still_open[-1]:
            still_open.pop()
            if len(still_open) < _DEEPEST:
                whole, rest = place + 1, "".join(reversed(still_open))
    return text[:whole] + rest
