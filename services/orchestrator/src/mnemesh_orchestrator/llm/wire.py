"""Request bodies as bytes. Equal requests give equal bytes."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from mnemesh_orchestrator.llm.errors import ProviderOptionsInvalid
from mnemesh_orchestrator.llm.render_cache import RenderCache
from mnemesh_orchestrator.llm.turns import (
    WireImage,
)


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Returns a body as compact JSON, with keys in the order of the renderer."""
    return msgspec.json.encode(body, enc_hook=_to_plain)


def with_provider_options(body: dict[str, Any], options: str | None, protected: frozenset[str]) -> dict[str, Any]:
    """Returns the body with an agent's own options, except for the fields that mnemesh controls.

    Raises:
        ProviderOptionsInvalid: the options are not the text of a JSON object.
    """
    if not options or not options.strip():
        return body
    try:
        decoded = json.loads(options)
    except ValueError as error:
        raise ProviderOptionsInvalid(f"The provider options are not JSON: {error}.") from error
    if not isinstance(decoded, dict):
        raise ProviderOptionsInvalid("The provider options are not a JSON object.")
    body.update({key: value for key, value in decoded.items() if key not in protected})
    return body


def with_parameters(body: dict[str, Any], parameters: str | None, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body with the parameters of a run that an API has.

    Args:
        body: the body.
        parameters: a JSON object in the words of OpenAI's chat API, or None.
        names: the names of the parameters in the API, by those in the object.
    """
    given = json.loads(parameters) if parameters else {}
    body.update({names[key]: value for key, value in given.items() if key in names and value is not None})
    return body


def image_base64(image: WireImage, cache: RenderCache) -> str:
    """Returns the bytes of an inline image as base64 text."""

    def encode() -> str:
        return base64.b64encode(image.part.data or b"").decode("ascii")

    return cache.text(("image", image.source.id, image.ordinal), image.source, encode)


def image_url(image: WireImage, cache: RenderCache) -> str | None:
    """Returns the URL of an image, which is a data URL with its bytes if it is inline; None if neither is known."""
    if image.part.data is not None:
        return f"data:{image.part.media_type or 'image/png'};base64,{image_base64(image, cache)}"
    return image.part.url


def hidden_image(image: WireImage) -> str:
    """Returns the text in place of an image whose content is not known."""
    return f"[image {image.part.file_id}: not shown here]"


def _to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} in a request body")
