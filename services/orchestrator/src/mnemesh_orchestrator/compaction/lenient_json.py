"""Reads the JSON object of an answer that is wrapped in text or cut off."""

import json
from typing import Any, Final

_DECODER: Final = json.JSONDecoder(strict=False)
_CLOSING: Final = {"{": "}", "[": "]"}
_DEEPEST: Final = 100
"""The maximum depth. Deeper answers are not copied at every bracket."""


def object_in(text: str) -> dict[str, Any]:
    """Returns the object that starts at the first brace; of a truncated one its complete part. Empty if there is none.

    Takes time in proportion to the text.
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
    """Replaces lone surrogates, which no store accepts, by question marks."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _closed(text: str, begin: int) -> str:
    """Returns the text up to the last complete inner value, followed by the brackets that close the outer ones."""
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
