"""The port of rerankers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Reranker(Protocol):
    """Scores texts by how well they answer a query.

    Example:
        >>> reranker = make_reranker("cohere/rerank-v3.5", RerankerSettings(api_key=key))
        >>> await reranker.rerank("Who sold the boat?", ["Nora: I sold it.", "Tomas: It rained."])
        [0.91, 0.02]
    """

    @property
    def handle(self) -> str:
        """The name of the model in settings, logs and metrics, as `provider/model`."""

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns one finite score per text, in the order of the texts; higher is better.

        Scores of one call are comparable with each other only. Cancelling the call stops it.

        Raises:
            RerankerUnavailable: a temporary failure.
            RerankerRejected: the same call would fail again.
        """

    async def close(self) -> None:
        """Releases connections and threads."""
