"""Reads the JSON object of an answer that is wrapped in text or cut off."""

import json
from typing import Any, Final

_DECODER: Final = json.JSONDecoder(strict=False)
_CLOSING: Final = {"{": "}", "[": "]"}
_MAX_DEPTH: Final = 100
"""The maximum depth. Deeper answers are not copied at every bracket."""


def parse_object(text: str) -> dict[str, Any]:
    """Returns the object that starts at the first brace; of a truncated one its complete part. Empty if there is none.

    Takes time in proportion to the text.
    """
    start = text.find("{")
    if start < 0:
        return {}
    for candidate in (text, _completed(text, start)):
        try:
            value = _encodable(_DECODER.raw_decode(candidate, start)[0])
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _encodable(value: Any) -> Any:
    """Replaces lone surrogates, which no store accepts, by question marks."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _completed(text: str, start: int) -> str:
    """Returns the text up to the last complete inner value, followed by the brackets that close the outer ones."""
    open_brackets: list[str] = []
    complete_end, closing = start, ""
    is_string = is_escaped = False
    for index in range(start, len(text)):
        character = text[index]
        if is_string:
            is_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            is_string = True
        elif character in _CLOSING:
            open_brackets.append(_CLOSING[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
            if len(open_brackets) < _MAX_DEPTH:
                complete_end, closing = index + 1, "".join(reversed(open_brackets))
    return text[:complete_end] + closing
