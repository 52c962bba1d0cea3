"""The conversion between the shared types and protobuf.

A function with a `field` argument converts what a caller sent: with a field path, it refuses a value that has no kind
(a part without a source, a decision that decides nothing) under that path. Without one, the value comes from another
service, which may be newer: parts of an unknown kind are left out.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_from_proto, timestamp_to_proto

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
from mnemesh_types.twin import enum_of, number_of, register

enum_of(pb.Role, Role)
enum_of(pb.ToolReturnStatus, ToolStatus)
_ROLE_TO_PROTO: Final = {role: number_of(role) for role in Role}
_ROLE_FROM_PROTO: Final[Mapping[int, Role]] = {number: role for role, number in _ROLE_TO_PROTO.items()}
_STATUS_TO_PROTO: Final = {status: number_of(status) for status in ToolStatus}
_STATUS_FROM_PROTO: Final[Mapping[int, ToolStatus]] = {number: status for status, number in _STATUS_TO_PROTO.items()}
_OPTIONAL: Final = (
    "approval_request_id",
    "name",
    "otid",
    "sender_id",
    "group_id",
    "model",
    "step_id",
    "run_id",
    "turn_id",
    "conversation_id",
    "is_err",
    "carried",
    "is_event",
)


def message_to_proto(message: Message, agent_id: str | None = None) -> pb.Message:
    """Converts a message. `agent_id` is used instead of the message's own if it is given."""
    return pb.Message(
        id=message.id,
        agent_id=message.agent_id if agent_id is None else agent_id,
        role=_ROLE_TO_PROTO[message.role],
        content=[part_to_proto(part) for part in message.content],
        tool_calls=[tool_call_to_proto(call) for call in message.tool_calls],
        tool_returns=[tool_return_to_proto(item) for item in message.tool_returns],
        approval_decisions=[decision_to_proto(item) for item in message.approval_decisions],
        approval_request_id=message.approval_request_id,
        name=message.name,
        otid=message.otid,
        sender_id=message.sender_id,
        group_id=message.group_id,
        model=message.model,
        step_id=message.step_id,
        run_id=message.run_id,
        turn_id=message.turn_id,
        conversation_id=message.conversation_id,
        is_err=message.is_err,
        carried=message.carried,
        is_event=message.is_event,
        create_time=timestamp_to_proto(message.created_at),
        update_time=optional_timestamp_to_proto(message.updated_at),
        sequence_id=message.sequence_id,
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
    role = _ROLE_FROM_PROTO.get(message.role)
    if role is None:
        path = f"{field or 'message'}.role"
        raise InvalidArgument(f"{path} must be a role of a message.", field=path)
    optional = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    return Message(
        id=message.id,
        role=role,
        created_at=now
        if now is not None and not message.HasField("create_time")
        else _time(message, "create_time", field),
        content=parts_from_proto(message.content, field and f"{field}.content"),
        tool_calls=tuple(tool_call_from_proto(call) for call in message.tool_calls),
        tool_returns=tuple(
            tool_return_from_proto(item, field and f"{field}.tool_returns[{index}]")
            for index, item in enumerate(message.tool_returns)
        ),
        approval_decisions=_decisions_from_proto(message.approval_decisions, field),
        agent_id=message.agent_id,
        updated_at=_time(message, "update_time", field) if message.HasField("update_time") else None,
        sequence_id=message.sequence_id,
        **optional,
    )


register(pb.Message, lambda message, field: message_from_proto(message, field or None), message_to_proto)


def part_to_proto(part: ContentPart) -> pb.ContentPart:
    match part:
        case TextPart(text, signature):
            return pb.ContentPart(text=pb.TextPart(text=text, signature=signature))
        case ImagePart():
            return pb.ContentPart(image=_image_to_proto(part))
        case ReasoningPart(text, is_native, signature):
            return pb.ContentPart(reasoning=pb.ReasoningPart(text=text, is_native=is_native, signature=signature))
        case RedactedReasoningPart(data):
            return pb.ContentPart(redacted_reasoning=pb.RedactedReasoningPart(data=data))
        case OmittedReasoningPart(signature):
            return pb.ContentPart(omitted_reasoning=pb.OmittedReasoningPart(signature=signature))
        case SummarizedReasoningPart(item_id, summaries, encrypted):
            summarized = pb.SummarizedReasoningPart(id=item_id, summaries=summaries, encrypted_content=encrypted)
            return pb.ContentPart(summarized_reasoning=summarized)


def parts_from_proto(parts: Iterable[pb.ContentPart], field: str | None = None) -> tuple[ContentPart, ...]:
    """Converts content parts in their order. See the module docstring for `field`."""
    if field is None:
        converted = (_part_from_proto(part) for part in parts)
        return tuple(part for part in converted if part is not None)
    return tuple(_required_part(part, f"{field}[{index}]") for index, part in enumerate(parts))


def tool_call_to_proto(call: ToolCall) -> pb.ToolCall:
    return pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments, provider_id=call.provider_id)


def tool_call_from_proto(call: pb.ToolCall) -> ToolCall:
    provider_id = call.provider_id if call.HasField("provider_id") else None
    return ToolCall(call.id, call.name, call.arguments, provider_id)


def tool_return_to_proto(item: ToolReturn) -> pb.ToolReturn:
    return pb.ToolReturn(
        tool_call_id=item.tool_call_id,
        name=item.name,
        status=_STATUS_TO_PROTO[item.status],
        content=[part_to_proto(part) for part in item.content],
        stdout=item.stdout,
        stderr=item.stderr,
    )


def tool_return_from_proto(item: pb.ToolReturn, field: str | None = None) -> ToolReturn:
    """Converts a tool return. See the module docstring for `field`."""
    status = _STATUS_FROM_PROTO.get(item.status)
    if status is None:
        path = f"{field or 'tool_return'}.status"
        raise InvalidArgument(f"{path} must be a status of a tool return.", field=path)
    return ToolReturn(
        tool_call_id=item.tool_call_id,
        name=item.name,
        status=status,
        content=parts_from_proto(item.content, field and f"{field}.content"),
        stdout=tuple(item.stdout),
        stderr=tuple(item.stderr),
    )


def role_to_proto(role: Role) -> pb.Role.ValueType:
    return _ROLE_TO_PROTO[role]  # type: ignore[no-any-return]


def role_from_proto(number: int, field: str) -> Role:
    """Converts a role. Raises InvalidArgument under `field` if it is unspecified or unknown."""
    if (role := _ROLE_FROM_PROTO.get(number)) is None:
        raise InvalidArgument(f"{field} must be a role of a message.", field=field)
    return role


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
            return Deny(item.tool_call_id, item.deny.reason if item.deny.HasField("reason") else None)
        case "client_return":
            tool_return = tool_return_from_proto(item.client_return, f"{field}.client_return")
            return ClientReturn(item.tool_call_id, tool_return)
        case _:
            raise InvalidArgument(f"{field}.decision is required.", field=f"{field}.decision")


def _time(message: pb.Message, name: str, field: str | None) -> datetime:
    return timestamp_from_proto(getattr(message, name), f"{field or 'message'}.{name}")


def _decisions_from_proto(items: Iterable[pb.ApprovalDecision], field: str | None) -> tuple[ApprovalDecision, ...]:
    path = f"{field or 'message'}.approval_decisions"
    return tuple(decision_from_proto(item, f"{path}[{index}]") for index, item in enumerate(items))


def _required_part(part: pb.ContentPart, field: str) -> ContentPart:
    converted = _part_from_proto(part)
    if converted is None:
        raise InvalidArgument(f"{field}.part is required.", field=f"{field}.part")
    if isinstance(converted, ImagePart) and part.image.WhichOneof("source") is None:
        raise InvalidArgument(f"{field}.image.source is required.", field=f"{field}.image.source")
    return converted


def _part_from_proto(part: pb.ContentPart) -> ContentPart | None:
    convert = _PARTS.get(part.WhichOneof("part") or "")
    return convert(part) if convert is not None else None


def _signature(part: pb.TextPart | pb.ReasoningPart | pb.OmittedReasoningPart) -> str | None:
    return part.signature if part.HasField("signature") else None


def _summarized_from_proto(part: pb.SummarizedReasoningPart) -> SummarizedReasoningPart:
    encrypted = part.encrypted_content if part.HasField("encrypted_content") else None
    return SummarizedReasoningPart(part.id, tuple(part.summaries), encrypted)


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
    detail = image.detail if image.HasField("detail") else None
    match image.WhichOneof("source"):
        case "inline":
            return ImagePart(data=image.inline.data, media_type=image.inline.media_type, detail=detail)
        case "url":
            return ImagePart(url=image.url, detail=detail)
        case "file_id":
            return ImagePart(file_id=image.file_id, detail=detail)
        case _:
            return ImagePart(detail=detail)


_PARTS: Final[Mapping[str, Callable[[pb.ContentPart], ContentPart]]] = {
    "text": lambda part: TextPart(part.text.text, _signature(part.text)),
    "image": lambda part: _image_from_proto(part.image),
    "reasoning": lambda part: ReasoningPart(part.reasoning.text, part.reasoning.is_native, _signature(part.reasoning)),
    "redacted_reasoning": lambda part: RedactedReasoningPart(part.redacted_reasoning.data),
    "omitted_reasoning": lambda part: OmittedReasoningPart(_signature(part.omitted_reasoning)),
    "summarized_reasoning": lambda part: _summarized_from_proto(part.summarized_reasoning),
}
