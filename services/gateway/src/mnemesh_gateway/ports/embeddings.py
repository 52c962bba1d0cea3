"""The embedders of archival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mnemesh_gateway.model.embeddings import EmbeddedTexts


class EmbeddingsPort(Protocol):
    """Embedders, which are the same for all organizations."""

    async def embed(self, embedder: str, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns the vectors of texts.

        Raises:
            UnknownEmbedder: There is no such embedder.
            InvalidRequest: A text is not valid, or there are too many. The error names `input` or `input[i]`.
            Unavailable: Archival or the embedder does not answer.
        """
        ...
