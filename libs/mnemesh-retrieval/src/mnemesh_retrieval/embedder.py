"""The port of embedders: texts in, vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors of one model.

    Vectors are float32 rows of length `dimension`, of norm 1 except for texts that hold nothing to embed (empty, or
    nothing the model knows): those are the zero vector. The same text always gives the same vector for one handle.
    """

    @property
    def handle(self) -> str:
        """`provider/model`: what names the model in configs and collections."""

    @property
    def dimension(self) -> int:
        """The length of every vector."""

    @property
    def hybrid_weight(self) -> float:
        """What a rank by it is worth beside a rank by words (a passage's and its neighbours'), where both are fused."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector per text, in order. Raises EmbedderUnavailable or EmbedderRejected."""

    async def close(self) -> None:
        """Release connections and threads."""
