"""Between messages and their rows: parts, calls, returns and decisions as JSON text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from mnemesh_recall.model.messages import (
    ApprovalDecision,
    Approve,
    ContentPart,
    Deny,
    ImageFile,
    ImagePart,
    ImageUrl,
    InlineImage,
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
from mnemesh_recall.model.searchable_text import searchable_text
from mnemesh_recall.store.sql.tables import messages

Row = dict[str, Any]
AnyRow = sa.Row[*tuple[Any, ...]]

COLUMNS: Final = tuple(
    column for column in messages.c if column.name not in ("organization_id", "search_text", "row_id")
)
"""What `to_message` reads, in its order."""

_NOT_SAID: Final = ("sequence_id", "conversation_id", "created_at", "updated_at", "search_text")

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode
_ROLES: Final = {role.value: role for role in Role}


def to_row(message: Message, organization_id: str) -> Row:
    """The columns of a message; the sequence id is the message's own."""
    return {
        "id": message.id,
        "organization_id": organization_id,
        "agent_id": message.agent_id,
        "sequence_id": message.sequence_id,
        "conversation_id": message.conversation_id,
        "role": message.role.value,
        "name": message.name,
        "otid": message.otid,
        "sender_id": message.sender_id,
        "group_id": message.group_id,
        "model": message.model,
        "step_id": message.step_id,
        "run_id": message.run_id,
        "turn_id": message.turn_id,
        "is_err": message.is_err,
        "approval_request_id": message.approval_request_id,
        "created_at": message.created_at,
        "updated_at": message.updated_at,
        **content_columns(message),
    }


def content_columns(message: Message) -> Row:
    """The columns that say what the message holds."""
    return {
        "content": _json(message.content, _part),
        "tool_calls": _json(message.tool_calls, _call),
        "tool_returns": _json(message.tool_returns, _return),
        "approval_decisions": _json(message.approval_decisions, _decision),
        "search_text": searchable_text(message).casefold() or None,
    }


def text_content(text: str) -> str | None:
    """The content column of a message that is one text."""
    return _json((TextPart(text),), _part)


def fingerprint(*groups: Sequence[Message]) -> str:
    """What messages say, in short: equal for groups of messages that differ in times and numbers only."""
    said = [[_said(message) for message in group] for group in groups]
    return hashlib.sha256(_encode(said)).hexdigest()


def _said(message: Message) -> Row:
    row = to_row(message, "")
    for name in _NOT_SAID:
        del row[name]
    return row


def to_message(row: AnyRow) -> Message:
    """The message of a row that selects COLUMNS first."""
    (
        id_, agent_id, sequence_id, conversation_id, role, name, otid, sender_id, group_id, model, step_id, run_id,
        turn_id, is_err, approval_request_id, created_at, updated_at, content, calls, returns, decisions,
    ) = row[:21]  # fmt: skip
    return Message(
        id=id_,
        agent_id=agent_id,
        role=_ROLES[role],
        created_at=created_at,
        content=_parts(_decode(content)) if content else (),
        tool_calls=tuple(ToolCall(**call) for call in _decode(calls)) if calls else (),
        tool_returns=tuple(_to_return(item) for item in _decode(returns)) if returns else (),
        approval_decisions=tuple(_to_decision(item) for item in _decode(decisions)) if decisions else (),
        approval_request_id=approval_request_id,
        name=name,
        otid=otid,
        sender_id=sender_id,
        group_id=group_id,
        model=model,
        step_id=step_id,
        run_id=run_id,
        turn_id=turn_id,
        is_err=is_err,
        conversation_id=conversation_id,
        updated_at=updated_at,
        sequence_id=sequence_id,
    )


def _json(items: Iterable[Any], encode: Callable[[Any], Row]) -> str | None:
    rows = [encode(item) for item in items]
    return _encode(rows).decode() if rows else None


def _part(part: ContentPart) -> Row:
    match part:
        case TextPart(text, signature):
            return _without_none(type="text", text=text, signature=signature)
        case ImagePart(source, detail):
            return _without_none(type="image", detail=detail, **_source(source))
        case ReasoningPart(text, is_native, signature):
            return _without_none(type="reasoning", text=text, is_native=is_native, signature=signature)
        case RedactedReasoningPart(data):
            return {"type": "redacted", "data": data}
        case OmittedReasoningPart(signature):
            return _without_none(type="omitted", signature=signature)
        case SummarizedReasoningPart(id_, summaries, encrypted):
            return _without_none(type="summarized", id=id_, summaries=summaries, encrypted_content=encrypted)


def _source(source: InlineImage | ImageUrl | ImageFile) -> Row:
    match source:
        case InlineImage(data, media_type):
            return {"data": data, "media_type": media_type}
        case ImageUrl(url):
            return {"url": url}
        case ImageFile(file_id):
            return {"file_id": file_id}


def _call(call: ToolCall) -> Row:
    return _without_none(id=call.id, name=call.name, arguments=call.arguments, provider_id=call.provider_id)


def _return(item: ToolReturn) -> Row:
    return {
        "tool_call_id": item.tool_call_id,
        "name": item.name,
        "status": item.status.value,
        "content": [_part(part) for part in item.content],
        "stdout": item.stdout,
        "stderr": item.stderr,
    }


def _decision(item: ApprovalDecision) -> Row:
    match item.decision:
        case Approve():
            return {"tool_call_id": item.tool_call_id, "type": "approve"}
        case Deny(reason):
            return _without_none(tool_call_id=item.tool_call_id, type="deny", reason=reason)
        case ToolReturn():
            return {"tool_call_id": item.tool_call_id, "type": "return", "return": _return(item.decision)}


def _parts(items: list[Row]) -> tuple[ContentPart, ...]:
    return tuple(_to_part(item) for item in items)


def _to_part(item: Row) -> ContentPart:
    match item.pop("type"):
        case "text":
            return TextPart(**item)
        case "image":
            return ImagePart(_to_source(item), item.get("detail"))
        case "reasoning":
            return ReasoningPart(**item)
        case "redacted":
            return RedactedReasoningPart(**item)
        case "omitted":
            return OmittedReasoningPart(**item)
        case "summarized":
            return SummarizedReasoningPart(item["id"], tuple(item["summaries"]), item.get("encrypted_content"))
        case other:
            raise ValueError(f"a stored part has the unknown type {other!r}")


def _to_source(item: Row) -> InlineImage | ImageUrl | ImageFile:
    if "data" in item:
        return InlineImage(base64.b64decode(item["data"]), item["media_type"])
    return ImageUrl(item["url"]) if "url" in item else ImageFile(item["file_id"])


def _to_return(item: Row) -> ToolReturn:
    return ToolReturn(
        tool_call_id=item["tool_call_id"],
        name=item["name"],
        status=ToolStatus(item["status"]),
        content=_parts(item["content"]),
        stdout=tuple(item["stdout"]),
        stderr=tuple(item["stderr"]),
    )


def _to_decision(item: Row) -> ApprovalDecision:
    match item["type"]:
        case "approve":
            return ApprovalDecision(item["tool_call_id"], Approve())
        case "deny":
            return ApprovalDecision(item["tool_call_id"], Deny(item.get("reason")))
        case _:
            return ApprovalDecision(item["tool_call_id"], _to_return(item["return"]))


def _without_none(**values: Any) -> Row:
    return {key: value for key, value in values.items() if value is not None}
