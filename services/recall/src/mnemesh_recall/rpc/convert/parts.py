"""What messages hold: content parts, tool calls and returns, decisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument

from mnemesh_recall.model import messages as model
from mnemesh_recall.model.messages import ToolStatus

_STATUSES: Final = {
    pb.TOOL_RETURN_STATUS_UNSPECIFIED: ToolStatus.UNSPECIFIED,
    pb.TOOL_RETURN_STATUS_SUCCESS: ToolStatus.SUCCESS,
    pb.TOOL_RETURN_STATUS_ERROR: ToolStatus.ERROR,
}
_STATUSES_OUT: Final = {status: number for number, status in _STATUSES.items()}


def parts_in(parts: Iterable[pb.ContentPart], field: str) -> tuple[model.ContentPart, ...]:
    """Content parts as they came."""
    return tuple(_part_in(part, f"{field}[{index}]") for index, part in enumerate(parts))


def _part_in(part: pb.ContentPart, field: str) -> model.ContentPart:
    match part.WhichOneof("part"):
        case "text":
            return model.TextPart(part.text.text, part.text.signature if part.text.HasField("signature") else None)
        case "image":
            return _image_in(part.image, f"{field}.image")
        case "reasoning":
            thought = part.reasoning
            signature = thought.signature if thought.HasField("signature") else None
            return model.ReasoningPart(thought.text, thought.is_native, signature)
        case "redacted_reasoning":
            return model.RedactedReasoningPart(part.redacted_reasoning.data)
        case "omitted_reasoning":
            omitted = part.omitted_reasoning
            return model.OmittedReasoningPart(omitted.signature if omitted.HasField("signature") else None)
        case "summarized_reasoning":
            summarized = part.summarized_reasoning
            encrypted = summarized.encrypted_content if summarized.HasField("encrypted_content") else None
            return model.SummarizedReasoningPart(summarized.id, tuple(summarized.summaries), encrypted)
        case _:
            raise InvalidArgument(f"{field}.part must be given.", field=f"{field}.part")


def _image_in(image: pb.ImagePart, field: str) -> model.ImagePart:
    source: model.InlineImage | model.ImageUrl | model.ImageFile
    match image.WhichOneof("source"):
        case "inline":
            source = model.InlineImage(image.inline.data, image.inline.media_type)
        case "url":
            source = model.ImageUrl(image.url)
        case "file_id":
            source = model.ImageFile(image.file_id)
        case _:
            raise InvalidArgument(f"{field}.source must be given.", field=f"{field}.source")
    return model.ImagePart(source, image.detail if image.HasField("detail") else None)


def call_in(call: pb.ToolCall) -> model.ToolCall:
    """A tool call as it came."""
    provider_id = call.provider_id if call.HasField("provider_id") else None
    return model.ToolCall(call.id, call.name, call.arguments, provider_id)


def return_in(item: pb.ToolReturn, field: str) -> model.ToolReturn:
    """A tool return as it came."""
    status = _STATUSES.get(item.status)
    if status is None:
        raise InvalidArgument(f"{field}.status is not a status.", field=f"{field}.status")
    return model.ToolReturn(
        tool_call_id=item.tool_call_id,
        name=item.name,
        status=status,
        content=parts_in(item.content, f"{field}.content"),
        stdout=tuple(item.stdout),
        stderr=tuple(item.stderr),
    )


def decision_in(item: pb.ApprovalDecision, field: str) -> model.ApprovalDecision:
    """An approval decision as it came."""
    decision: model.Approve | model.Deny | model.ToolReturn
    match item.WhichOneof("decision"):
        case "approve":
            decision = model.Approve()
        case "deny":
            decision = model.Deny(item.deny.reason if item.deny.HasField("reason") else None)
        case "client_return":
            decision = return_in(item.client_return, f"{field}.client_return")
        case _:
            raise InvalidArgument(f"{field}.decision must be given.", field=f"{field}.decision")
    return model.ApprovalDecision(item.tool_call_id, decision)


def part_out(part: model.ContentPart) -> pb.ContentPart:
    """A content part for the wire."""
    match part:
        case model.TextPart(text, signature):
            return pb.ContentPart(text=pb.TextPart(text=text, signature=signature))
        case model.ImagePart():
            return pb.ContentPart(image=_image_out(part))
        case model.ReasoningPart(text, is_native, signature):
            return pb.ContentPart(reasoning=pb.ReasoningPart(text=text, is_native=is_native, signature=signature))
        case model.RedactedReasoningPart(data):
            return pb.ContentPart(redacted_reasoning=pb.RedactedReasoningPart(data=data))
        case model.OmittedReasoningPart(signature):
            return pb.ContentPart(omitted_reasoning=pb.OmittedReasoningPart(signature=signature))
        case model.SummarizedReasoningPart(id_, summaries, encrypted):
            summarized = pb.SummarizedReasoningPart(id=id_, summaries=summaries, encrypted_content=encrypted)
            return pb.ContentPart(summarized_reasoning=summarized)


def _image_out(image: model.ImagePart) -> pb.ImagePart:
    match image.source:
        case model.InlineImage(data, media_type):
            return pb.ImagePart(inline=pb.InlineImage(data=data, media_type=media_type), detail=image.detail)
        case model.ImageUrl(url):
            return pb.ImagePart(url=url, detail=image.detail)
        case model.ImageFile(file_id):
            return pb.ImagePart(file_id=file_id, detail=image.detail)


def call_out(call: model.ToolCall) -> pb.ToolCall:
    """A tool call for the wire."""
    return pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments, provider_id=call.provider_id)


def return_out(item: model.ToolReturn) -> pb.ToolReturn:
    """A tool return for the wire."""
    return pb.ToolReturn(
        tool_call_id=item.tool_call_id,
        name=item.name,
        status=_STATUSES_OUT[item.status],
        content=[part_out(part) for part in item.content],
        stdout=item.stdout,
        stderr=item.stderr,
    )


def decision_out(item: model.ApprovalDecision) -> pb.ApprovalDecision:
    """An approval decision for the wire."""
    match item.decision:
        case model.Approve():
            return pb.ApprovalDecision(tool_call_id=item.tool_call_id, approve=pb.Approve())
        case model.Deny(reason):
            return pb.ApprovalDecision(tool_call_id=item.tool_call_id, deny=pb.Deny(reason=reason))
        case model.ToolReturn():
            return pb.ApprovalDecision(tool_call_id=item.tool_call_id, client_return=return_out(item.decision))
