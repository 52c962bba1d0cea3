"""Requests and responses of the embeddings API."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter
from mnemesh_gateway.http.convert.fields import of_type, one_of, optional, required
from mnemesh_gateway.http.parameters import require_known_embeddings_parameters
from mnemesh_gateway.model.embeddings import EmbeddedTexts, EmbeddingsRequest


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


def embedded_texts_to_json(embedded: EmbeddedTexts, *, as_base64: bool) -> dict[str, Any]:
    """Returns the vectors as a list object. The usage is 0 if the embedder does not know the tokens."""
    tokens = embedded.tokens or 0
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if as_base64 else list(vector)}
        for index, vector in enumerate(embedded.vectors)
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
