"""The embedders of archival over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from mnemesh.archival.v1 import embeddings_service_pb2 as rpc
from mnemesh.archival.v1.embeddings_service_pb2_grpc import EmbeddingServiceStub
from mnemesh_kit.errors import InvalidArgument

from mnemesh_gateway.clients import deadlines
from mnemesh_gateway.errors import EmbedderUnknown, InvalidRequest, UnknownEmbedder
from mnemesh_gateway.model.embeddings import EmbeddedTexts


class EmbeddingsClient:
    """EmbeddingsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = EmbeddingServiceStub(channel)

    async def embed(self, embedder: str, texts: Sequence[str]) -> EmbeddedTexts:
        """See EmbeddingsPort."""
        request = rpc.EmbedTextsRequest(embedder=embedder, texts=texts)
        try:
            response = await self._stub.EmbedTexts(request, timeout=deadlines.EMBED)
        except EmbedderUnknown as error:
            raise UnknownEmbedder(embedder, error.message) from error
        except InvalidArgument as error:
            raise _renamed(error, len(texts)) from error
        vectors = [embedding.values for embedding in response.embeddings]
        tokens = response.tokens if response.HasField("tokens") else None
        return EmbeddedTexts(response.embedder, response.dimension, vectors, tokens)


def _renamed(error: InvalidArgument, count: int) -> InvalidArgument:
    """Returns the error with the names of OpenAI's fields."""
    field = error.field or ""
    if field == "embedder":
        param = "model"
    elif field.startswith("texts"):
        param = "input" if count == 1 else f"input{field.removeprefix('texts')}"
    else:
        return error
    return InvalidRequest(error.message.replace(field, param, 1), param)
