"""The rows of messages. Parts, calls, returns and decisions are stored as JSON text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_types.messages import ApprovalDecision, ContentPart, Message, Role, TextPart, ToolCall, ToolReturn

from mnemesh_recall.model.searchable_text import searchable_text, speaker_of
from mnemesh_recall.store.sql.tables import messages

Row = dict[str, Any]
AnyRow = sa.Row[*tuple[Any, ...]]

COLUMNS: Final = tuple(
    column for column in messages.c if column.name not in ("organization_id", "search_text", "speaker", "row_id")
)
"""The columns that `message_from_row` reads, in its order."""

_CONTENT: Final = (
    "id", "agent_id", "role", "name", "otid", "sender_id", "group_id", "model", "step_id", "run_id", "turn_id",
    "is_err", "is_event", "carried", "approval_request_id", "content", "tool_calls", "tool_returns",
    "approval_decisions",
)  # fmt: skip
"""The columns by which a step is recognized. Times and numbers are not among them: a repeated commit has others."""

_encode: Final = msgspec.json.Encoder().encode
_parts: Final = msgspec.json.Decoder(tuple[ContentPart, ...]).decode
_calls: Final = msgspec.json.Decoder(tuple[ToolCall, ...]).decode
_returns: Final = msgspec.json.Decoder(tuple[ToolReturn, ...]).decode
_decisions: Final = msgspec.json.Decoder(tuple[ApprovalDecision, ...]).decode
_ROLES: Final = {role.value: role for role in Role}


def message_to_row(message: Message, organization_id: str) -> Row:
    """Returns the columns of a message, with the sequence id of the message."""
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
        "is_event": message.is_event,
        "approval_request_id": message.approval_request_id,
        "created_at": message.created_at,
        "updated_at": message.updated_at,
        **content_columns(message),
    }


def content_columns(message: Message) -> Row:
    """Returns the columns with the content of a message, and those that derive from its content and name."""
    text = searchable_text(message)
    return {
        "carried": message.carried,
        "content": _json(message.content),
        "tool_calls": _json(message.tool_calls),
        "tool_returns": _json(message.tool_returns),
        "approval_decisions": _json(message.approval_decisions),
        "search_text": text.casefold() or None,
        "speaker": (text and speaker_of(message, text).casefold()) or None,
    }


def text_content(text: str) -> str | None:
    """Returns the content column of a message that consists of one text."""
    return _json((TextPart(text),))


def fingerprint(*groups: Sequence[Row]) -> str:
    """Returns a hash of the content of groups of rows. Rows that differ only in times and numbers have the same."""
    content = [[[row[name] for name in _CONTENT] for row in group] for group in groups]
    return hashlib.sha256(_encode(content)).hexdigest()


def message_from_row(row: AnyRow) -> Message:
    """Returns the message of a row that selects COLUMNS first."""
    (
        id_, agent_id, sequence_id, conversation_id, role, name, otid, sender_id, group_id, model, step_id, run_id,
        turn_id, is_err, is_event, carried, approval_request_id, created_at, updated_at, content, calls, returns,
        decisions,
    ) = row[:23]  # fmt: skip
    return Message(
        id=id_,
        agent_id=agent_id,
        role=_ROLES[role],
        created_at=created_at,
        content=_parts(content) if content else (),
        tool_calls=_calls(calls) if calls else (),
        tool_returns=_returns(returns) if returns else (),
        approval_decisions=_decisions(decisions) if decisions else (),
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
        is_event=is_event,
        carried=carried,
        conversation_id=conversation_id,
        updated_at=updated_at,
        sequence_id=sequence_id,
    )


def _json(items: Sequence[Any]) -> str | None:
    return _encode(items).decode() if items else None
