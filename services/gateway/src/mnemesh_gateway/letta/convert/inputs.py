"""Messages that clients send: their roles, contents and images."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2

from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.errors import invalid_field

_ROLES: Final = {
    "user": message_pb2.ROLE_USER,
    "system": message_pb2.ROLE_SYSTEM,
    "assistant": message_pb2.ROLE_ASSISTANT,
}


def input_to_proto(message: dict[str, Any], *loc: str | int) -> runs_pb2.InputMessage:
    """Returns a message to send; `loc` is its path in the body.

    Raises:
        ValidationFailed: the role is unknown, or the content is neither text nor parts that agents take.
    """
    role = message.get("role")
    if role not in _ROLES:
        raise invalid_field("Input should be 'user', 'system' or 'assistant'", *loc, "role")
    found = runs_pb2.InputMessage(role=_ROLES[role], content=content_to_proto(message.get("content"), *loc, "content"))
    for name in ("name", "otid", "sender_id", "group_id"):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid_field("Input should be a valid string", *loc, name)
        set_present(found, **{name: value})
    return found


def content_to_proto(content: Any, *loc: str | int) -> list[message_pb2.ContentPart]:
    """Returns the parts of a content, which is a text or a list of parts.

    Raises:
        ValidationFailed: it is neither, or a part has another type or lacks a field.
    """
    if isinstance(content, str):
        return [message_pb2.ContentPart(text=message_pb2.TextPart(text=content))]
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise invalid_field("Input should be a valid string or list", *loc)
    return [_part(part, *loc, index) for index, part in enumerate(content)]


def _part(part: Any, *loc: str | int) -> message_pb2.ContentPart:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        text = message_pb2.TextPart(text=part["text"])
        set_present(text, signature=part.get("signature"))
        return message_pb2.ContentPart(text=text)
    if kind == "image" and isinstance(part.get("source"), dict):
        return message_pb2.ContentPart(image=_image(part["source"], *loc, "source"))
    raise invalid_field("Input should be a part with type 'text' or 'image'", *loc)


def _image(source: dict[str, Any], *loc: str | int) -> message_pb2.ImagePart:
    image = message_pb2.ImagePart()
    kind = source.get("type")
    data = source.get("data")
    if kind == "url" and isinstance(source.get("url"), str):
        image.url = source["url"]
    elif isinstance(data, str) and kind in {"base64", "letta"}:
        try:
            image.inline.data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise invalid_field("The data must be base64", *loc, "data") from error
        image.inline.media_type = str(source.get("media_type") or "image/png")
    elif kind == "letta" and isinstance(source.get("file_id"), str):
        image.file_id = source["file_id"]
    else:
        raise invalid_field("Input should be a source with type 'url', 'base64' or 'letta'", *loc)
    set_present(image, detail=source.get("detail"))
    return image
