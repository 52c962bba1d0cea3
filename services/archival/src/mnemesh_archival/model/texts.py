"""A check of texts that the kit does not have."""

from __future__ import annotations

import unicodedata

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_text


def require_no_control_characters(value: str, field: str, max_chars: int) -> str:
    """Returns `value`, which may be empty, if it has no control character and is not too long.

    Raises:
        InvalidArgument: it has a control character or more than `max_chars` code points.
    """
    require_text(value, field, max_chars=max_chars)
    if any(unicodedata.category(char) == "Cc" for char in value):
        raise InvalidArgument(f"{field} must not contain control characters.", field=field)
    return value
