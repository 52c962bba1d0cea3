"""Conversations."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec


class Conversation(msgspec.Struct, kw_only=True):
    """A conversation."""

    id: str
    agent_id: str
    summary: str | None = None
    description: str | None = None
    archived: bool = False
    archived_at: datetime | None = None
    in_context_message_ids: list[str] = []
    isolated_block_ids: list[str] = []
    model: str | None = None
    model_settings: dict[str, Any] | None = None
    context_window_limit: int | None = None
    last_message_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None


class ConversationFields(msgspec.Struct, kw_only=True):
    """What a client can set. A field that is null or absent stays as it is."""

    summary: str | None = None
    description: str | None = None
    model: str | None = None
    model_settings: dict[str, Any] | None = None
    context_window_limit: int | None = None


class CreateConversation(ConversationFields, kw_only=True):
    """A conversation to create."""

    isolated_block_labels: list[str] | None = None


class UpdateConversation(ConversationFields, kw_only=True):
    """Changes of a conversation."""

    archived: bool | None = None


class OfAgent(msgspec.Struct, kw_only=True):
    """The agent of a conversation that is named "default"."""

    agent_id: str | None = None


class CreateQuery(msgspec.Struct, kw_only=True):
    """The agent of a new conversation."""

    agent_id: str


class ForkQuery(OfAgent, kw_only=True):
    """Which part of a conversation is forked."""

    message_id: str | None = None


class RecompileQuery(msgspec.Struct, kw_only=True):
    """Whether the new text is stored."""

    dry_run: bool = False


class ListConversations(msgspec.Struct, kw_only=True):
    """The query of a list of conversations."""

    agent_id: str | None = None
    limit: int | None = None
    before: str | None = None
    after: str | None = None
    summary_search: str | None = None
    archive_status: Literal["unarchived", "archived", "all"] = "unarchived"
    order: Literal["asc", "desc"] | None = None
    order_by: Literal["created_at", "last_run_completion", "last_message_at"] = "created_at"
