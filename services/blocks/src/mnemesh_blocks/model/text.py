"""Checks of texts that callers send."""

from __future__ import annotations

from mnemesh_kit.errors import InvalidArgument


def require_no_nul(text: str, field: str) -> str:
    """Returns `text` if it contains no NUL character, which PostgreSQL cannot store.

    Raises:
        InvalidArgument: It contains one.
    """
    if "\0" in text:
        raise InvalidArgument(f"{field} must not contain NUL characters.", field=field)
    return text


def require_bounded(text: str, field: str, max_chars: int) -> str:
    """Returns `text` if it contains no NUL character and has at most `max_chars` characters.

    Raises:
        InvalidArgument: It contains a NUL character or is too long.
    """
    if len(require_no_nul(text, field)) > max_chars:
        raise InvalidArgument(f"{field} must have at most {max_chars} characters.", field=field)
    return text
