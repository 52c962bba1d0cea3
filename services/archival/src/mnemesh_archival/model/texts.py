"""Checks of texts."""

from __future__ import annotations

import json
import unicodedata
from typing import Final

from mnemesh_kit.errors import InvalidArgument

MAX_METADATA_BYTES: Final = 100_000


def checked_line(value: str, where: str, longest: int) -> str:
    """A single line that is not blank and holds no control characters."""
    if not value.strip():
        raise InvalidArgument(f"{where} must not be blank.", field=where)
    return checked_free(value, where, longest, controls="")


def checked_free(value: str, where: str, longest: int, controls: str = "\t\n\r") -> str:
    """Text of bounded length without control characters, but for the given ones."""
    if len(value) > longest:
        raise InvalidArgument(f"{where} must be at most {longest:,} characters.", field=where)
    if any(unicodedata.category(char) == "Cc" and char not in controls for char in value):
        raise InvalidArgument(f"{where} must not hold control characters.", field=where)
    return value


def checked_metadata(metadata: str | None, where: str) -> str | None:
    """JSON text of an object, kept as it came."""
    if metadata is None:
        return None
    if len(metadata.encode()) > MAX_METADATA_BYTES:
        raise InvalidArgument(f"{where} must be at most {MAX_METADATA_BYTES:,} bytes.", field=where)
    try:
        parsed = json.loads(metadata)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or "\0" in metadata:
        raise InvalidArgument(f"{where} must be a JSON object.", field=where)
    return metadata
