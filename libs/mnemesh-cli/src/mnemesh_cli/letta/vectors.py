"""The vectors of Letta's passages, and the embedders that made them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Set
from typing import Final

_PADDED: Final = 4096
"""Letta fills vectors up with zeros to this number of dimensions."""


def same_model(handle: str, embedders: Set[str]) -> str | None:
    """Returns the embedder of the mesh with the model of a handle of Letta; None if there is none.

    Another provider may serve the same model: the last part of the handle names it, without the tag ":latest".
    """
    if handle in embedders:
        return handle
    return min((known for known in embedders if _model(known) == _model(handle)), default=None)


def _model(handle: str) -> str:
    return handle.rsplit("/", maxsplit=1)[-1].removesuffix(":latest")


def vector_of(stored: object, dimensions: int | None) -> list[float] | None:
    """Returns a stored vector without the zeros that fill it up; None if there is none with these dimensions.

    A vector of zeros, and one with numbers that are not finite, is none.

    Args:
        stored: the text of a pgvector value, or the 32-bit floats that SQLite holds.
        dimensions: those of the embedding model.
    """
    values = _values(stored)
    if not dimensions or len(values) < dimensions:
        return None
    if len(values) > dimensions and (len(values) != _PADDED or any(values[dimensions:])):
        return None
    return values[:dimensions] if any(values) and all(map(math.isfinite, values)) else None


def _values(stored: object) -> list[float]:
    if isinstance(stored, bytes):
        return list(struct.unpack(f"<{len(stored) // 4}f", stored)) if len(stored) % 4 == 0 else []
    if isinstance(stored, str) and stored.startswith("["):
        return [float(value) for value in json.loads(stored)]
    return []
