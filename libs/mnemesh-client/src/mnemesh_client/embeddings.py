"""Embeddings: the vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence

from mnemesh.archival.v1 import embeddings_service_pb2, embeddings_service_pb2_grpc

from mnemesh_client.transport import Channel

_EMBEDDING_SECONDS = 60.0


class EmbeddingsClient:
    """Calls of EmbeddingService, as `client.embeddings`.

    Errors: InvalidArgument EMBEDDER_UNKNOWN; Unavailable EMBEDDER_UNAVAILABLE; FailedPrecondition PROVIDER_REFUSED.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = embeddings_service_pb2_grpc.EmbeddingServiceStub(channel)

    async def embed(self, texts: Sequence[str], *, embedder: str = "") -> embeddings_service_pb2.EmbedTextsResponse:
        """Returns one vector per text: `embeddings`, with the `dimension` and the `embedder` that made them.

        Args:
            texts: the texts. Nothing is stored.
            embedder: the embedder of archives; empty is the server's default.
        """
        request = embeddings_service_pb2.EmbedTextsRequest(embedder=embedder, texts=texts)
        return await self.stub.EmbedTexts(request, timeout=_EMBEDDING_SECONDS)
