"""The conversion between the shared types and protobuf.

A function with a `field` argument converts what a caller sent: with a field path, it refuses a value that has no kind
(a part without a source, a decision that decides nothing) under that path. Without one, the value comes from another
service, which may be newer: parts of an unknown kind are left out.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_from_proto, timestamp_to_proto

from mnemesh_types.messages import (
    ApprovalDecision,
    Approve,
    ClientReturn,
    ContentPart,
    Deny,
    ImagePart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)
from mnemesh_types.twin import Conversion, enum_of, optional_field, register

enum_of(pb.Role, Role)
enum_of(pb.ToolReturnStatus, ToolStatus)
_PARTS: Final[Mapping[type[ContentPart], tuple[str, Conversion[Any, Any]]]] = {
    TextPart: ("text", Conversion(pb.TextPart, TextPart)),
    ReasoningPart: ("reasoning", Conversion(pb.ReasoningPart, ReasoningPart)),
    RedactedReasoningPart: ("redacted_reasoning", Conversion(pb.RedactedReasoningPart, RedactedReasoningPart)),
    OmittedReasoningPart: ("omitted_reasoning", Conversion(pb.OmittedReasoningPart, OmittedReasoningPart)),
    SummarizedReasoningPart: ("summarized_reasoning", Conversion(pb.SummarizedReasoningPart, SummarizedReasoningPart)),
}
"""The fields and conversions of the parts other than images, whose oneof has fields that are not messages."""
_BY_FIELD: Final = dict(_PARTS.values())
_TOOL_CALL: Final = Conversion(pb.ToolCall, ToolCall)
_TOOL_RETURN: Final = Conversion(pb.ToolReturn, ToolReturn, content=None)
_MESSAGE: Final = Conversion(
    pb.Message, Message, agent_id=None, content=None, tool_returns=None, approval_decisions=None, create_time=None
)
tool_call_to_proto: Final = _TOOL_CALL.to_proto


def message_to_proto(message: Message, agent_id: str | None = None) -> pb.Message:
    """Converts a message. `agent_id` is used instead of the message's own if it is given."""
    return _MESSAGE.to_proto(
        message,
        agent_id=message.agent_id if agent_id is None else agent_id,
        content=[part_to_proto(part) for part in message.content],
        tool_returns=[tool_return_to_proto(item) for item in message.tool_returns],
        approval_decisions=[decision_to_proto(item) for item in message.approval_decisions],
        create_time=timestamp_to_proto(message.created_at),
    )


def message_from_proto(message: pb.Message, field: str | None = None, now: datetime | None = None) -> Message:
    """Converts a message.

    Args:
        message: the protobuf message.
        field: its path in the caller's request; None for a message from another service.
        now: the creation time of a message that has none.

    Raises:
        InvalidArgument: with `field`, the role or the kind of a part, return or decision is missing or unknown, or a
            time is out of range.
    """
    path = field or "message"
    return _MESSAGE.from_proto(
        message,
        path,
        agent_id=message.agent_id,
        created_at=now
        if now is not None and not message.HasField("create_time")
        else timestamp_from_proto(message.create_time, f"{path}.create_time"),
        content=parts_from_proto(message.content, field and f"{field}.content"),
        tool_returns=tuple(
            tool_return_from_proto(item, field and f"{field}.tool_returns[{index}]")
            for index, item in enumerate(message.tool_returns)
        ),
        approval_decisions=tuple(
            decision_from_proto(item, f"{path}.approval_decisions[{index}]")
            for index, item in enumerate(message.approval_decisions)
        ),
    )


register(pb.Message, lambda message, field: message_from_proto(message, field or None), message_to_proto)


def part_to_proto(part: ContentPart) -> pb.ContentPart:
    if isinstance(part, ImagePart):
        return pb.ContentPart(image=_image_to_proto(part))
    field, conversion = _PARTS[type(part)]
    return pb.ContentPart(**{field: conversion.to_proto(part)})


def parts_from_proto(parts: Iterable[pb.ContentPart], field: str | None = None) -> tuple[ContentPart, ...]:
    """Converts content parts in their order. See the module docstring for `field`."""
    if field is None:
        converted = (_part_from_proto(part) for part in parts)
        return tuple(part for part in converted if part is not None)
    return tuple(_required_part(part, f"{field}[{index}]") for index, part in enumerate(parts))


def tool_return_to_proto(item: ToolReturn) -> pb.ToolReturn:
    return _TOOL_RETURN.to_proto(item, content=[part_to_proto(part) for part in item.content])


def tool_return_from_proto(item: pb.ToolReturn, field: str | None = None) -> ToolReturn:
    """Converts a tool return. See the module docstring for `field`."""
    content = parts_from_proto(item.content, field and f"{field}.content")
    return _TOOL_RETURN.from_proto(item, field or "tool_return", content=content)


def decision_to_proto(item: ApprovalDecision) -> pb.ApprovalDecision:
    match item:
        case Approve(tool_call_id):
            return pb.ApprovalDecision(tool_call_id=tool_call_id, approve=pb.Approve())
        case Deny(tool_call_id, reason):
            return pb.ApprovalDecision(tool_call_id=tool_call_id, deny=pb.Deny(reason=reason))
        case ClientReturn(tool_call_id, tool_return):
            return pb.ApprovalDecision(tool_call_id=tool_call_id, client_return=tool_return_to_proto(tool_return))


def decision_from_proto(item: pb.ApprovalDecision, field: str) -> ApprovalDecision:
    """Converts an approval decision. Raises InvalidArgument under `field` if it decides nothing."""
    match item.WhichOneof("decision"):
        case "approve":
            return Approve(item.tool_call_id)
        case "deny":
            return Deny(item.tool_call_id, optional_field(item.deny, "reason"))
        case "client_return":
            tool_return = tool_return_from_proto(item.client_return, f"{field}.client_return")
            return ClientReturn(item.tool_call_id, tool_return)
        case _:
            raise InvalidArgument(f"{field}.decision is required.", field=f"{field}.decision")


def _required_part(part: pb.ContentPart, field: str) -> ContentPart:
    converted = _part_from_proto(part)
    if converted is None:
        raise InvalidArgument(f"{field}.part is required.", field=f"{field}.part")
    if isinstance(converted, ImagePart) and part.image.WhichOneof("source") is None:
        raise InvalidArgument(f"{field}.image.source is required.", field=f"{field}.image.source")
    return converted


def _part_from_proto(part: pb.ContentPart) -> ContentPart | None:
    field = part.WhichOneof("part")
    if field is None:
        return None
    return _image_from_proto(part.image) if field == "image" else _BY_FIELD[field].from_proto(getattr(part, field))


def _image_to_proto(part: ImagePart) -> pb.ImagePart:
    if part.data is not None:
        inline = pb.InlineImage(data=part.data, media_type=part.media_type or "")
        return pb.ImagePart(inline=inline, detail=part.detail)
    if part.url is not None:
        return pb.ImagePart(url=part.url, detail=part.detail)
    if part.file_id is not None:
        return pb.ImagePart(file_id=part.file_id, detail=part.detail)
    return pb.ImagePart(detail=part.detail)


def _image_from_proto(image: pb.ImagePart) -> ImagePart:
    detail = optional_field(image, "detail")
    match image.WhichOneof("source"):
        case "inline":
            return ImagePart(data=image.inline.data, media_type=image.inline.media_type, detail=detail)
        case "url":
            return ImagePart(url=image.url, detail=detail)
        case "file_id":
            return ImagePart(file_id=image.file_id, detail=detail)
        case _:
            return ImagePart(detail=detail)
