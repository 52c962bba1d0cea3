"""The JSON of messages and conversations."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from mnemesh_gateway.letta.schemas.models import CompactionSettings


class ClientTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ClientSkill(msgspec.Struct, kw_only=True):
    """A skill of the client's environment, and where the client has its instructions."""

    name: str
    description: str
    location: str


class SendMessages(msgspec.Struct, kw_only=True):
    """Messages to send, and how to process and return them."""

    messages: list[dict[str, Any]] | None = None
    input: str | list[dict[str, Any]] | None = None
    max_steps: int = 50
    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_return_message_types: list[str] | None = None
    client_tools: list[ClientTool] | None = None
    client_skills: list[ClientSkill] | None = None
    override_model: str | None = None
    override_system: str | None = None
    include_compaction_messages: bool = False
    streaming: bool | None = None
    stream_tokens: bool = False
    include_pings: bool = True
    background: bool = False
    callback_url: str | None = None
    agent_id: str | None = None


class StopReason(msgspec.Struct, kw_only=True):
    """Why a turn ended."""

    message_type: str = "stop_reason"
    stop_reason: str


class Usage(msgspec.Struct, kw_only=True):
    """The tokens of a turn. Null was not reported by the provider; zero was."""

    message_type: str = "usage_statistics"
    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    step_count: int = 0
    run_ids: list[str] | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    context_tokens: int | None = None


class LettaResponse(msgspec.Struct, kw_only=True):
    """A turn: its messages, why it ended, and its tokens."""

    messages: list[dict[str, Any]]
    stop_reason: StopReason
    usage: Usage
    logprobs: dict[str, Any] | None = None
    turns: list[dict[str, Any]] | None = None


class ListMessages(msgspec.Struct, kw_only=True):
    """The query of a list of messages."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    group_id: str | None = None
    conversation_id: str | None = None
    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_err: bool | None = None
    include_return_message_types: list[str] | None = None


class CorrectMessage(msgspec.Struct, kw_only=True):
    """One of the messages that clients see, with new words: `reasoning` of a reasoning message, else `content`."""

    message_type: str
    content: Any = None
    reasoning: str | None = None


class CancelRuns(msgspec.Struct, kw_only=True):
    """The runs to cancel; null cancels those of the agent."""

    run_ids: list[str] | None = None


class ResetMessages(msgspec.Struct, kw_only=True):
    """How to reset a window."""

    add_default_initial_messages: bool = False


class Compact(msgspec.Struct, kw_only=True):
    """How to compact a conversation."""

    compaction_settings: CompactionSettings | None = None
    agent_id: str | None = None


class CompactionResponse(msgspec.Struct, kw_only=True):
    """What a compaction did."""

    summary: str
    num_messages_before: int
    num_messages_after: int


class GenerateText(msgspec.Struct, kw_only=True):
    """A prompt for a model, which is answered without the agent's memory, messages and tools."""

    prompt: str
    system_prompt: str | None = None
    override_model: str | None = None
    response_schema: dict[str, Any] | None = None


class GeneratedText(msgspec.Struct, kw_only=True):
    """The answer of a model; JSON text if a schema was given."""

    content: str
    model: str
    usage: Usage


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
