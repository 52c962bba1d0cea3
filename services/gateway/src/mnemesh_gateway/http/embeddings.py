"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Final

from mnemesh_kit.principal import current_principal
from starlette.requests import Request
from starlette.responses import Response

from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.http.convert.embeddings import embedded_texts_to_json, embeddings_request_from_json
from mnemesh_gateway.http.convert.fields import json_object
from mnemesh_gateway.http.streams import encode
from mnemesh_gateway.model.embeddings import EmbeddingsRequest
from mnemesh_gateway.usecases.embeddings import EmbeddingsService

_NUMBER_BYTES: Final = 4


class EmbeddingsEndpoint:
    """Decodes requests, and encodes vectors."""

    def __init__(self, service: EmbeddingsService, bodies: Bodies) -> None:
        self._service = service
        self._bodies = bodies

    async def create(self, request: Request) -> Response:
        """Answers a request."""
        async with self._bodies.reading(request, _converted) as wanted:
            embedded = await self._service.embed(current_principal(), wanted)

        def encoded() -> bytes:
            return encode(embedded_texts_to_json(embedded, as_base64=wanted.base64))

        size = len(embedded.vectors) * embedded.dimension * _NUMBER_BYTES
        content = await self._bodies.work.run(current_principal().organization_id, size, encoded)
        return Response(content, media_type="application/json")


def _converted(raw: bytes) -> EmbeddingsRequest:
    return embeddings_request_from_json(json_object(raw))
