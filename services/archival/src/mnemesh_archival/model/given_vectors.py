"""Vectors that come with passages: their identity, their validation, and whether an archive keeps them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_line

MAX_HANDLE_CHARS: Final = 500
NUMBER: Final = np.dtype("<f4")
"""The numbers of a stored vector: what embedders and contracts have. Two bytes each would alter them."""


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """An embedder and the length of its vectors. Only vectors of one identity can be compared."""

    handle: str
    dimension: int


@dataclass(frozen=True, slots=True)
class GivenVector:
    """A vector that an embedder made of a text earlier."""

    identity: EmbedderIdentity
    values: bytes
    """The numbers, as NUMBER."""


class VectorUse(IntEnum):
    """The use of the vector of a passage. The numbers are those of the contract."""

    NONE = 0
    """There was none, or the passage was not stored."""
    KEPT = 1
    OTHER_EMBEDDER = 2
    OTHER_DIMENSION = 3


def validated_vector(numbers: Sequence[float], handle: str, dimension: int, field: str) -> GivenVector:
    """Returns a vector that a caller gives.

    Args:
        numbers: the vector.
        handle: the embedder that made it, as `provider/model`.
        dimension: the length of the vectors of the embedder.
        field: the path of the passage in the request, such as `passages[0]`.

    Raises:
        InvalidArgument: the identity or the vector is missing or bad.
    """
    by = f"{field}.embedded_by"
    require_line(handle, f"{by}.handle", max_chars=MAX_HANDLE_CHARS)
    if dimension < 1:
        raise InvalidArgument(f"{by}.dimension must be at least 1.", field=f"{by}.dimension")
    name = f"{field}.embedding"
    if len(numbers) != dimension:
        raise InvalidArgument(f"{name} must have {dimension} numbers, as embedded_by states.", field=name)
    vector = np.fromiter(numbers, dtype=NUMBER, count=dimension)
    if not np.isfinite(vector).all():
        raise InvalidArgument(f"{name} must have finite numbers only.", field=name)
    if not vector.any():
        raise InvalidArgument(f"{name} must not be the zero vector.", field=name)
    return GivenVector(EmbedderIdentity(handle, dimension), vector.tobytes())


def decide_use(given: GivenVector | None, kept: Collection[EmbedderIdentity]) -> VectorUse:
    """Returns whether an archive keeps a vector, or why not.

    Args:
        given: the vector; None if the passage has none.
        kept: the identities of the archive's embedder and of the one that it is changing to.
    """
    if given is None:
        return VectorUse.NONE
    if given.identity in kept:
        return VectorUse.KEPT
    if any(identity.handle == given.identity.handle for identity in kept):
        return VectorUse.OTHER_DIMENSION
    return VectorUse.OTHER_EMBEDDER
