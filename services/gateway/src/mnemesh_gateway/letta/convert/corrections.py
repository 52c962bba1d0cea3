"""Corrections of stored messages, as clients of the release 0.16.1 send them: one of the messages that clients see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb

from mnemesh_gateway.letta.convert.inputs import content_to_proto
from mnemesh_gateway.letta.convert.messages import Shown, spoken
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.messages import CorrectMessage

_ROLES: Final = {
    "user_message": pb.ROLE_USER,
    "system_message": pb.ROLE_SYSTEM,
    "assistant_message": pb.ROLE_ASSISTANT,
    "reasoning_message": pb.ROLE_ASSISTANT,
}


def correction_to_proto(stored: pb.Message, body: CorrectMessage, request_id: str) -> rpc.UpdateMessageRequest:
    """Returns the request that changes a stored message.

    Args:
        stored: the message as it is.
        body: the message that a client sees, with its new words.
        request_id: of the request.

    Raises:
        ValidationFailed: the type is unknown or not one of the stored message's, or the words are missing.
    """
    if body.message_type not in _ROLES:
        raise invalid_field(f"Input should be one of {', '.join(_ROLES)}", "body", "message_type")
    if stored.role != _ROLES[body.message_type]:
        raise _another_type(body)
    changed = pb.Message()
    changed.CopyFrom(stored)
    match body.message_type:
        case "reasoning_message":
            path = _set_reasoning(changed, body)
        case "assistant_message":
            path = _set_words(changed, body)
        case _:
            path = _set_content(changed, content_to_proto(body.content, "body", "content"), _is_content)
    request = rpc.UpdateMessageRequest(request_id=request_id, message=changed)
    request.update_mask.paths.append(path)
    return request


def _set_words(message: pb.Message, body: CorrectMessage) -> str:
    """Replaces what the agent said: the argument of its call of send_message, or its text."""
    for call in message.tool_calls:
        if spoken(call, Shown()) is not None:
            if not isinstance(body.content, str):
                raise invalid_field("Input should be a valid string", "body", "content")
            arguments = msgspec.json.decode(call.arguments)
            call.arguments = msgspec.json.encode(arguments | {Shown().argument: body.content}).decode()
            return "tool_calls"
    if not any(map(_is_content, message.content)):
        raise _another_type(body)
    return _set_content(message, content_to_proto(body.content, "body", "content"), _is_content)


def _set_reasoning(message: pb.Message, body: CorrectMessage) -> str:
    """Replaces the reasoning. The provider's signature, which is that of the earlier text, is left out."""
    if body.reasoning is None:
        raise invalid_field("Field required", "body", "reasoning")
    parts = [part for part in message.content if _is_reasoning(part)]
    if not parts:
        raise _another_type(body)
    reasoning = pb.ReasoningPart(text=body.reasoning, is_native=parts[0].reasoning.is_native)
    return _set_content(message, [pb.ContentPart(reasoning=reasoning)], _is_reasoning)


def _set_content(message: pb.Message, new: list[pb.ContentPart], is_replaced: Callable[[Any], bool]) -> str:
    """Replaces parts of the content; the new ones are where the first of them was."""
    parts = list(message.content)
    place = next((index for index, part in enumerate(parts) if is_replaced(part)), len(parts))
    kept = [part for part in parts[place:] if not is_replaced(part)]
    del message.content[:]
    message.content.extend([*parts[:place], *new, *kept])
    return "content"


def _is_content(part: pb.ContentPart) -> bool:
    return part.WhichOneof("part") in {"text", "image"}


def _is_reasoning(part: pb.ContentPart) -> bool:
    return part.WhichOneof("part") == "reasoning"


def _another_type(body: CorrectMessage) -> Exception:
    return invalid_field(f"The message is no {body.message_type}.", "body", "message_type")
