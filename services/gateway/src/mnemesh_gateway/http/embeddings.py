"""POST /v1/embeddings."""

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsResponse
from mnemesh_kit.call_context import current_principal
from starlette.requests import Request
from starlette.responses import Response

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter
from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.http.convert.messages import json_object, of_type, one_of, optional, required
from mnemesh_gateway.http.parameters import require_known_embeddings_parameters
from mnemesh_gateway.http.streams import encode
from mnemesh_gateway.usecases.agents import EmbeddingsService

_NUMBER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A request of vectors."""

    model: str
    """The handle of an embedder."""
    texts: tuple[str, ...]
    dimensions: int | None = None
    """The length that the vectors must have; None for that of the embedder."""
    base64: bool = False
    """The vectors are returned as base64 of little-endian float32 numbers instead of arrays."""


def embeddings_request_from_json(body: Mapping[str, Any]) -> EmbeddingsRequest:
    """Returns the request of a body of /v1/embeddings. Raises InvalidRequest."""
    require_known_embeddings_parameters(body)
    model = required(body, "model", str)
    if not model:
        raise InvalidRequest("Invalid value for 'model': must not be empty.", "model")
    encoding = optional(body, "encoding_format", str)
    dimensions = optional(body, "dimensions", int)
    if dimensions is not None and dimensions < 1:
        raise InvalidRequest("Invalid value for 'dimensions': must be at least 1.", "dimensions")
    optional(body, "user", str)
    return EmbeddingsRequest(
        model=model,
        texts=_texts(body),
        dimensions=dimensions,
        base64=encoding is not None and one_of(encoding, ("float", "base64"), "encoding_format") == "base64",
    )


def embedded_texts_to_json(embedded: EmbedTextsResponse, *, as_base64: bool) -> dict[str, Any]:
    """Returns the vectors as a list object. The usage is 0 if the embedder does not know the tokens."""
    tokens = embedded.tokens
    encoded = _base64 if as_base64 else list
    data = [
        {"object": "embedding", "index": index, "embedding": encoded(vector.values)}
        for index, vector in enumerate(embedded.embeddings)
    ]
    return {
        "object": "list",
        "data": data,
        "model": embedded.embedder,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _texts(body: Mapping[str, Any]) -> tuple[str, ...]:
    if "input" not in body:
        raise InvalidRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    given = body["input"]
    if isinstance(given, str):
        return (_text(given, "input"),)
    items = of_type(given, list, "input")
    if not items:
        raise InvalidRequest("Invalid 'input': empty array. Expected at least one text.", "input", "empty_array")
    if isinstance(items[0], (int, list)) and not isinstance(items[0], bool):
        raise UnsupportedParameter("input", "Send a text or an array of texts, not arrays of tokens.", "tokens")
    return tuple(_text(item, f"input[{index}]") for index, item in enumerate(items))


def _text(value: Any, param: str) -> str:
    text = of_type(value, str, param)
    if not text:
        raise InvalidRequest(f"Invalid value for '{param}': must not be an empty text.", param)
    return text


def _base64(vector: Sequence[float]) -> str:
    """Returns the base64 of little-endian float32 numbers."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


class EmbeddingsEndpoint:
    """Decodes requests, and encodes vectors."""

    def __init__(self, service: EmbeddingsService, bodies: Bodies) -> None:
        self._service = service
        self._bodies = bodies

    async def create(self, request: Request) -> Response:
        """Answers a request."""
        async with self._bodies.read_converted(request, _converted) as wanted:
            embedded = await self._service.embed(wanted.model, wanted.texts, wanted.dimensions)

        def encoded() -> bytes:
            return encode(embedded_texts_to_json(embedded, as_base64=wanted.base64))

        size = len(embedded.embeddings) * embedded.dimension * _NUMBER_BYTES
        content = await self._bodies.work.run(current_principal().organization_id, size, encoded)
        return Response(content, media_type="application/json")


def _converted(raw: bytes) -> EmbeddingsRequest:
    return embeddings_request_from_json(json_object(raw))
