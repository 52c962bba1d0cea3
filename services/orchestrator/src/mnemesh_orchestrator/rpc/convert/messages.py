"""Messages between the domain and the contract, for the adapter of recall and for the servicers."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.types.v1 import message_pb2 as pb

from mnemesh_orchestrator.model.messages import (
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
    Usage,
)

ROLE_TO_PROTO: Final = {
    Role.SYSTEM: pb.ROLE_SYSTEM,
    Role.USER: pb.ROLE_USER,
    Role.ASSISTANT: pb.ROLE_ASSISTANT,
    Role.TOOL: pb.ROLE_TOOL,
    Role.APPROVAL: pb.ROLE_APPROVAL,
    Role.SUMMARY: pb.ROLE_SUMMARY,
}
_ROLE_FROM_PROTO: Final = {number: role for role, number in ROLE_TO_PROTO.items()}
STATUS_TO_PROTO: Final = {
    ToolStatus.SUCCESS: pb.TOOL_RETURN_STATUS_SUCCESS,
    ToolStatus.ERROR: pb.TOOL_RETURN_STATUS_ERROR,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPTIONAL: Final = (
    "name",
    "otid",
    "sender_id",
    "group_id",
    "model",
    "step_id",
    "run_id",
    "turn_id",
    "conversation_id",
    "approval_request_id",
)


def message_to_proto(message: Message, agent_id: str) -> pb.Message:
    """A message of an agent, in the contract's words."""
    return pb.Message(
        id=message.id,
        agent_id=agent_id,
        role=ROLE_TO_PROTO[message.role],
        content=[part_to_proto(part) for part in message.content],
        tool_calls=[tool_call_to_proto(call) for call in message.tool_calls],
        tool_returns=[tool_return_to_proto(answer) for answer in message.tool_returns],
        approval_decisions=[decision_to_proto(item) for item in message.approval_decisions],
        is_err=True if message.is_err else None,
        create_time=timestamp(message.created_at),
        sequence_id=message.sequence_id,
        **{name: getattr(message, name) for name in _OPTIONAL},
    )


def message_from_proto(message: pb.Message) -> Message:
    """A message in the domain's words.

    What the step loop has no use for stays behind: the agent's id, the time
    of the last change, and what was decided by an answer to an approval.
    """
    return Message(
        id=message.id,
        role=_ROLE_FROM_PROTO[message.role],
        created_at=moment(message.create_time),
        content=parts_from_proto(message.content),
        tool_calls=tuple(tool_call_from_proto(call) for call in message.tool_calls),
        tool_returns=tuple(tool_return_from_proto(answer) for answer in message.tool_returns),
        is_err=message.is_err,
        sequence_id=message.sequence_id,
        **{name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)},
    )


def part_to_proto(part: ContentPart) -> pb.ContentPart:
    """One part of a message's content."""
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


def parts_from_proto(parts: Iterable[pb.ContentPart]) -> tuple[ContentPart, ...]:
    """The parts of a content in their order. A kind that this server does not know yet is left out."""
    known = (_part_from_proto(part) for part in parts)
    return tuple(part for part in known if part is not None)


def tool_call_to_proto(call: ToolCall) -> pb.ToolCall:
    """A call of a tool."""
    return pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments, provider_id=call.provider_id)


def tool_call_from_proto(call: pb.ToolCall) -> ToolCall:
    """A call of a tool."""
    provider_id = call.provider_id if call.HasField("provider_id") else None
    return ToolCall(call.id, call.name, call.arguments, provider_id)


def tool_return_to_proto(answer: ToolReturn) -> pb.ToolReturn:
    """What a call came to."""
    return pb.ToolReturn(
        tool_call_id=answer.tool_call_id,
        name=answer.name,
        status=STATUS_TO_PROTO[answer.status],
        content=[pb.ContentPart(text=pb.TextPart(text=answer.text))],
        stdout=answer.stdout,
        stderr=answer.stderr,
    )


def tool_return_from_proto(answer: pb.ToolReturn) -> ToolReturn:
    """What a call came to; its texts joined by line breaks."""
    succeeded = answer.status == pb.TOOL_RETURN_STATUS_SUCCESS
    return ToolReturn(
        tool_call_id=answer.tool_call_id,
        name=answer.name,
        status=ToolStatus.SUCCESS if succeeded else ToolStatus.ERROR,
        text="\n".join(part.text.text for part in answer.content if part.HasField("text")),
        stdout=tuple(answer.stdout),
        stderr=tuple(answer.stderr),
    )


def decision_to_proto(item: ApprovalDecision) -> pb.ApprovalDecision:
    """A decision."""
    result = pb.ApprovalDecision(tool_call_id=item.tool_call_id)
    match item.decision:
        case Approve():
            result.approve.SetInParent()
        case Deny(reason):
            result.deny.CopyFrom(pb.Deny(reason=reason))
        case ClientReturn(status, text, stdout, stderr):
            returned = pb.ToolReturn(
                tool_call_id=item.tool_call_id,
                status=STATUS_TO_PROTO[status],
                content=[pb.ContentPart(text=pb.TextPart(text=text))],
                stdout=stdout,
                stderr=stderr,
            )
            result.client_return.CopyFrom(returned)
    return result


def usage_to_proto(usage: Usage) -> pb.Usage:
    """Tokens; what was not reported stays absent."""
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def timestamp(instant: datetime) -> Timestamp:
    """An aware datetime as a timestamp, to the microsecond."""
    since = instant - _EPOCH
    # Timestamp.FromDatetime does the same in several times the time, and every event and message has one.
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1_000)


def moment(instant: Timestamp) -> datetime:
    """A timestamp as an aware datetime in UTC."""
    return instant.ToDatetime(tzinfo=UTC)


def _part_from_proto(part: pb.ContentPart) -> ContentPart | None:
    convert = _PARTS.get(part.WhichOneof("part") or "")
    return convert(part) if convert is not None else None


def _signature(part: pb.TextPart | pb.ReasoningPart | pb.OmittedReasoningPart) -> str | None:
    return part.signature if part.HasField("signature") else None


def _summarized_from_proto(part: pb.SummarizedReasoningPart) -> SummarizedReasoningPart:
    encrypted = part.encrypted_content if part.HasField("encrypted_content") else None
    return SummarizedReasoningPart(part.id, tuple(part.summaries), encrypted)


def _image_to_proto(part: ImagePart) -> pb.ImagePart:
    image = pb.ImagePart(detail=part.detail)
    if part.data is not None:
        image.inline.CopyFrom(pb.InlineImage(data=part.data, media_type=part.media_type or ""))
    elif part.url is not None:
        image.url = part.url
    elif part.file_id is not None:
        image.file_id = part.file_id
    return image


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
