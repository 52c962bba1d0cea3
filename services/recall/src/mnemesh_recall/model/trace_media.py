"""Images in traces: URLs, file ids, and inline images as data URLs (RFC 2397)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

from mnemesh_types.messages import ContentPart, ImagePart

_DATA_URL: Final = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)
_FILE_ID: Final = re.compile(r"file-[A-Za-z0-9_-]+")


def locations_of(parts: Iterable[ContentPart]) -> tuple[str, ...]:
    """Returns the images among content parts, in order. An inline image is a data URL with its bytes."""
    locations = (_location(part) for part in parts if isinstance(part, ImagePart))
    return tuple(location for location in locations if location is not None)


def _location(part: ImagePart) -> str | None:
    if part.data is not None:
        return f"data:{part.media_type or ''};base64,{base64.b64encode(part.data).decode()}"
    return part.url if part.url is not None else part.file_id


def image_at(location: str) -> ImagePart:
    """Returns the image of a trace. A data URL becomes an inline image if its bytes can be decoded."""
    if (match := _DATA_URL.fullmatch(location)) is not None:
        try:
            return ImagePart(data=base64.b64decode(match[2], validate=True), media_type=match[1])
        except binascii.Error:
            pass
    return ImagePart(file_id=location) if _FILE_ID.fullmatch(location) else ImagePart(url=location)
