"""Vectors of texts, as the archives of the mesh use them."""

from __future__ import annotations

from mnemesh_kit.principal import Principal

from mnemesh_gateway.errors import UnsupportedParameter
from mnemesh_gateway.model.embeddings import EmbeddedTexts, EmbeddingsRequest
from mnemesh_gateway.ports.embeddings import EmbeddingsPort


class EmbeddingsService:
    """Embeds texts."""

    def __init__(self, embedders: EmbeddingsPort) -> None:
        self._embedders = embedders

    async def embed(self, caller: Principal, request: EmbeddingsRequest) -> EmbeddedTexts:  # noqa: ARG002
        """Returns the vectors of a request. The port knows the caller.

        Raises:
            UnknownEmbedder: There is no such embedder.
            InvalidRequest: A text is not valid, or there are too many.
            UnsupportedParameter: The vectors of the embedder have another length.
        """
        embedded = await self._embedders.embed(request.model, request.texts)
        if request.dimensions not in (None, embedded.dimension):
            raise UnsupportedParameter(
                "dimensions", f"The vectors of {embedded.embedder} have {embedded.dimension} numbers."
            )
        return embedded
