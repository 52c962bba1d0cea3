"""The servicer of mnemesh.archival.v1.EmbeddingService."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mnemesh.archival.v1 import embeddings_service_pb2 as pb
from mnemesh.archival.v1 import embeddings_service_pb2_grpc as pb_grpc
from mnemesh_kit.call_context import current_principal

from mnemesh_archival.rpc.convert import embedded_texts_to_proto
from mnemesh_archival.usecases.embeddings import EmbeddingService

_INLINE_NUMBERS: Final = 50_000
"""Larger responses are built in a thread, so that they do not delay other calls."""


class EmbeddingsServicer(pb_grpc.EmbeddingServiceServicer):
    """Decodes requests, calls the use case and encodes responses."""

    def __init__(self, embeddings: EmbeddingService) -> None:
        self._embeddings = embeddings

    async def EmbedTexts(self, request: pb.EmbedTextsRequest, context: Any) -> pb.EmbedTextsResponse:
        embedded = await self._embeddings.embed(current_principal(), request.embedder, request.texts)
        if embedded.dimension * len(embedded.vectors) > _INLINE_NUMBERS:
            return await asyncio.to_thread(embedded_texts_to_proto, embedded)
        return embedded_texts_to_proto(embedded)
