"""Batches of messages."""

from __future__ import annotations

from typing import Any

import msgspec

from mnemesh_gateway.letta.pages import PageQuery
from mnemesh_gateway.letta.schemas.messages import SendMessages


class BatchRequest(SendMessages, kw_only=True):
    """The messages for one agent."""

    agent_id: str


class CreateBatch(msgspec.Struct, kw_only=True):
    """The requests of a batch, and the URL that is called when all have ended."""

    requests: list[BatchRequest]
    callback_url: str | None = None


class ListBatchMessages(PageQuery, kw_only=True):
    """The query of the messages of a batch."""

    agent_id: str | None = None


class BatchMessages(msgspec.Struct, kw_only=True):
    """Messages as they are stored."""

    messages: list[dict[str, Any]]
