"""The port of embedders, which turn texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors of one model.

    A vector has `dimension` float32 numbers and norm 1, or is the zero vector if the text has nothing to embed (it is
    empty, or the model knows none of it). One handle always yields the same vector for the same text.

    Example:
        >>> embedder = make_embedder("mnemesh/wordllama-256")
        >>> (vector,) = await embedder.embed(["an old oak"])
        >>> vector.shape
        (256,)
    """

    @property
    def handle(self) -> str:
        """The name of the model in settings and collections, as `provider/model`."""

    @property
    def dimension(self) -> int:
        """The length of the vectors."""

    @property
    def hybrid_weight(self) -> float:
        """The weight of a rank by vectors in a fusion, where a rank by words weighs 1."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Returns one vector per text, in order.

        Raises:
            EmbedderUnavailable: a temporary failure.
            EmbedderRejected: the same call would fail again.
        """

    async def close(self) -> None:
        """Releases connections and threads."""
