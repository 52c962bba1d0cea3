"""Conversations as rows: what lists sort and search by is a column, the rest is a JSON document."""

from dataclasses import replace
from typing import Any

import msgspec
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.model.conversations import Conversation, ConversationState

_CONVERSATION = msgspec.json.Decoder(Conversation)
_ENCODE = msgspec.json.Encoder().encode


def new_row(conversation: Conversation, state: ConversationState, creation: bytes | None = None) -> dict[str, Any]:
    """A new conversation as a row."""
    return {
        "id": conversation.id,
        "organization_id": conversation.organization_id,
        "agent_id": conversation.agent_id,
        "is_default": conversation.is_default,
        "state": state,
        "creation": creation,
        "last_message_at": conversation.last_message_at,
        "created_at": conversation.created_at,
        "epoch": 0,
        "next_queue_number": 1,
        **changed_columns(conversation),
    }


def changed_columns(conversation: Conversation) -> dict[str, Any]:
    """What a change of a conversation writes; `last_message_at` is a column alone, for runs move it."""
    return {
        "archived": conversation.archived,
        "summary": conversation.summary,
        "document": _ENCODE(replace(conversation, last_message_at=None)),
        "updated_at": conversation.updated_at,
    }


def decode_conversation(document: bytes) -> Conversation:
    """The conversation of a document, without its `last_message_at`."""
    return _CONVERSATION.decode(document)


def conversation_of(row: Any) -> Conversation:
    """The conversation of a row of `conversations`."""
    return replace(decode_conversation(row.document), last_message_at=row.last_message_at)


def conversation_missing(conversation_id: str) -> NotFound:
    """The error for a conversation that is not there, not yet, or not any more."""
    return NotFound(f"There is no conversation {conversation_id}.", resource_id=conversation_id)
