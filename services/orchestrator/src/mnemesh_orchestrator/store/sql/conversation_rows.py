"""Rows of conversations. Fields that lists sort or filter by are columns; the others are a JSON document."""

from dataclasses import replace
from typing import Any

import msgspec
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.model.conversations import Conversation, ConversationState

_CONVERSATION = msgspec.json.Decoder(Conversation)
_ENCODE = msgspec.json.Encoder().encode


def new_row(conversation: Conversation, state: ConversationState, creation: bytes | None = None) -> dict[str, Any]:
    """Returns the row of a new conversation."""
    return {
        "id": conversation.id,
        "organization_id": conversation.organization_id,
        "agent_id": conversation.agent_id,
        "is_default": conversation.is_default,
        "state": state,
        "creation": creation,
        "last_message_at": conversation.last_message_at,
        "client_key": conversation.key,
        "created_at": conversation.created_at,
        "epoch": 0,
        "next_queue_number": 1,
        **changed_columns(conversation),
    }


def changed_columns(conversation: Conversation) -> dict[str, Any]:
    """Returns the columns that a change of a conversation writes. Runs write the column `last_message_at`."""
    return {
        "archived": conversation.archived,
        "summary": conversation.summary,
        "document": _ENCODE(replace(conversation, last_message_at=None)),
        "updated_at": conversation.updated_at,
    }


def decode_conversation(document: bytes) -> Conversation:
    """Returns the conversation of a document, without `last_message_at`."""
    return _CONVERSATION.decode(document)


def conversation_of(row: Any) -> Conversation:
    """Returns the conversation of a row of `conversations`."""
    return replace(decode_conversation(row.document), last_message_at=row.last_message_at)


def conversation_missing(conversation_id: str) -> NotFound:
    """Returns the error for a conversation that does not exist or is not ACTIVE."""
    return NotFound(f"There is no conversation {conversation_id}.", resource_id=conversation_id)
