"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
from typing import Final

from mnemesh_kit.principal import current_principal
from starlette.requests import Request
from starlette.responses import Response

from mnemesh_gateway.http.body import read_body
from mnemesh_gateway.http.convert.embeddings import embedded_texts_to_json, embeddings_request_from_json
from mnemesh_gateway.http.convert.fields import json_object
from mnemesh_gateway.http.streams import encode
from mnemesh_gateway.usecases.embeddings import EmbeddingsService

_INLINE_NUMBERS: Final = 50_000
"""Larger responses are encoded in a thread, so that they do not delay streams."""


class EmbeddingsEndpoint:
    """Decodes requests, and encodes vectors."""

    def __init__(self, service: EmbeddingsService, max_body_bytes: int) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes

    async def create(self, request: Request) -> Response:
        """Answers a request."""
        wanted = embeddings_request_from_json(json_object(await read_body(request, self._max_body_bytes)))
        embedded = await self._service.embed(current_principal(), wanted)

        def encoded() -> bytes:
            return encode(embedded_texts_to_json(embedded, as_base64=wanted.base64))

        is_large = len(embedded.vectors) * embedded.dimension > _INLINE_NUMBERS
        content = await asyncio.to_thread(encoded) if is_large else encoded()
        return Response(content, media_type="application/json")
