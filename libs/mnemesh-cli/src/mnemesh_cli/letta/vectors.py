"""The vectors of Letta's passages."""

from __future__ import annotations

import json
import struct
from typing import Final

_PADDED: Final = 4096
"""Letta fills vectors up with zeros to this number of dimensions."""


def vector_of(stored: object, dimensions: int | None) -> list[float] | None:
    """Returns a stored vector without the zeros that fill it up; None if there is none with these dimensions.

    Args:
        stored: the text of a pgvector value, or the 32-bit floats that SQLite holds.
        dimensions: those of the embedding model.
    """
    values = _values(stored)
    if not dimensions or len(values) < dimensions:
        return None
    if len(values) > dimensions and (len(values) != _PADDED or any(values[dimensions:])):
        return None
    return values[:dimensions]


def _values(stored: object) -> list[float]:
    if isinstance(stored, bytes):
        return list(struct.unpack(f"<{len(stored) // 4}f", stored)) if len(stored) % 4 == 0 else []
    if isinstance(stored, str) and stored.startswith("["):
        return [float(value) for value in json.loads(stored)]
    return []
