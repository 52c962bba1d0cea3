"""The port of embedders, which turn texts into vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
ROUNDING: Final = 1e-6
"""How far the norm of a normalized vector is from 1 at most. Vector engines use the same limit."""


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
    def similarity_weight(self) -> float:
        """The weight of similarities in a fusion of scores, where words weigh 1. See `ranking.fusion`."""

    @property
    def least_similarity(self) -> float:
        """The similarity up to which texts are unrelated. A hybrid hit without a word of the query is above it."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Returns one vector per text, in order.

        Raises:
            EmbedderUnavailable: a temporary failure.
            EmbedderRejected: the same call would fail again.
        """

    async def close(self) -> None:
        """Releases connections and threads."""


@dataclass(frozen=True, slots=True)
class CountedVectors:
    """The vectors of texts, in order, and the tokens of the texts."""

    vectors: list[Vector]
    tokens: int | None
    """None if the embedder does not know them."""


@runtime_checkable
class CountingEmbedder(Protocol):
    """An embedder that knows the tokens of texts."""

    async def embed_counted(self, texts: Sequence[str]) -> CountedVectors:
        """Returns one vector per text, and the tokens of all. The errors are those of Embedder.embed."""


@runtime_checkable
class LoadedEmbedder(Protocol):
    """An embedder that loads its model into this process, at the latest with the first text."""

    async def load(self) -> None:
        """Loads the model. Raises EmbedderMisconfigured if it is not installed."""


@runtime_checkable
class AveragingEmbedder(Protocol):
    """An embedder that may average the vectors of words: in that of a short query, a name outweighs the rest."""

    averages_words: bool


def averages_words(embedder: Embedder) -> bool:
    """Returns whether the vectors of an embedder are averages of words."""
    return isinstance(embedder, AveragingEmbedder) and embedder.averages_words


def normalized(vector: Vector) -> Vector:
    """Returns a vector with norm 1; the zero vector as it is, and one whose norm is 1 but for rounding, too."""
    exact = vector.astype(np.float64)  # squares of 32-bit floats may overflow
    norm = float(np.linalg.norm(exact))
    return vector if norm == 0 or abs(norm - 1) <= ROUNDING else (exact / norm).astype(np.float32)


async def embed_counted(embedder: Embedder, texts: Sequence[str]) -> CountedVectors:
    """Returns one vector per text, and the tokens of all if the embedder knows them."""
    if isinstance(embedder, CountingEmbedder):
        return await embedder.embed_counted(texts)
    return CountedVectors(await embedder.embed(texts), None)


WORDLLAMA: Final = "mnemesh/wordllama-256"
HASHING: Final = "mnemesh/hashing-256"
