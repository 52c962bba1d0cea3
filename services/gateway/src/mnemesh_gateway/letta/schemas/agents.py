"""Agents."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from mnemesh_gateway.letta.schemas.blocks import Block, CreateBlock
from mnemesh_gateway.letta.schemas.groups import Group
from mnemesh_gateway.letta.schemas.identities import Identity
from mnemesh_gateway.letta.schemas.models import (
    CompactionSettings,
    EmbeddingConfig,
    GivenEmbeddingConfig,
    GivenLLMConfig,
    LLMConfig,
)
from mnemesh_gateway.letta.schemas.tools import Tool

AgentType = Literal[
    "memgpt_agent",
    "memgpt_v2_agent",
    "letta_v1_agent",
    "react_agent",
    "workflow_agent",
    "split_thread_agent",
    "sleeptime_agent",
    "voice_convo_agent",
    "voice_sleeptime_agent",
]


class FileBlock(msgspec.Struct, kw_only=True):
    """A file of an agent, as a block that only the agent's tools for files change."""

    id: str
    label: str
    value: str
    file_id: str
    source_id: str
    is_open: bool
    last_accessed_at: datetime | None = None
    read_only: bool = True


class Memory(msgspec.Struct, kw_only=True):
    """The blocks of an agent."""

    agent_type: str | None = None
    git_enabled: bool = False
    blocks: list[Block]
    file_blocks: list[FileBlock] = []
    prompt_template: str = ""


class Source(msgspec.Struct, kw_only=True):
    """A folder."""

    id: str
    name: str
    embedding_config: EmbeddingConfig
    description: str | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None
    vector_db_provider: str | None = None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class Variable(msgspec.Struct, kw_only=True):
    """An environment variable of an agent's tools. Its value is never shown."""

    id: str | None = None
    agent_id: str
    key: str
    value: str = ""
    description: str | None = None
    value_enc: str | None = None
    updated_at: datetime | None = None


class AgentState(msgspec.Struct, kw_only=True):
    """An agent with all that belongs to it."""

    id: str
    name: str
    agent_type: str
    system: str
    model: str | None
    model_settings: dict[str, Any] | None
    embedding: str | None
    llm_config: LLMConfig
    embedding_config: EmbeddingConfig | None
    compaction_settings: CompactionSettings | None
    response_format: dict[str, Any] | None
    description: str | None
    metadata: dict[str, Any] | None
    memory: Memory
    blocks: list[Block]
    tools: list[Tool]
    sources: list[Source]
    tags: list[str]
    tool_rules: list[dict[str, Any]] | None
    message_ids: list[str] | None
    tool_exec_environment_variables: list[Variable]
    secrets: list[Variable]
    identity_ids: list[str]
    identities: list[Identity]
    pending_approval: dict[str, Any] | None
    message_buffer_autoclear: bool
    enable_sleeptime: bool | None
    multi_agent_group: Group | None
    managed_group: Group | None
    last_run_completion: datetime | None
    last_run_duration_ms: int | None
    last_stop_reason: str | None
    timezone: str | None
    max_files_open: int | None
    per_file_view_window_char_limit: int | None
    hidden: bool | None
    created_by_id: str | None
    last_updated_by_id: str | None
    created_at: datetime | None
    updated_at: datetime | None
    project_id: str | None
    template_id: str | None
    base_template_id: str | None
    deployment_id: str | None
    entity_id: str | None


class ModelChoice(msgspec.Struct, kw_only=True):
    """The fields of a body that choose the model, its settings and the embedder."""

    model: str | None = None
    model_settings: dict[str, Any] | None = None
    llm_config: GivenLLMConfig | None = None
    context_window_limit: int | None = None
    max_tokens: int | None = None
    max_reasoning_tokens: int | None = None
    enable_reasoner: bool | None = None
    parallel_tool_calls: bool | None = None
    embedding: str | None = None
    embedding_config: GivenEmbeddingConfig | None = None
    response_format: dict[str, Any] | None = None
    compaction_settings: CompactionSettings | None = None


class AgentOptions(ModelChoice, kw_only=True):
    """The fields that creating and updating an agent share."""

    description: str | None = None
    system: str | None = None
    reasoning: bool | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    tool_rules: list[dict[str, Any]] | None = None
    tool_ids: list[str] | None = None
    block_ids: list[str] | None = None
    source_ids: list[str] | None = None
    folder_ids: list[str] | None = None
    identity_ids: list[str] | None = None
    secrets: dict[str, str] | None = None
    tool_exec_environment_variables: dict[str, str] | None = None
    message_buffer_autoclear: bool | None = None
    enable_sleeptime: bool | None = None
    timezone: str | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    hidden: bool | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None


class CreateAgent(AgentOptions, kw_only=True):
    """An agent to create."""

    name: str | None = None
    agent_type: AgentType | None = None
    memory_blocks: list[CreateBlock] | None = None
    tools: list[str] | None = None
    initial_message_sequence: list[dict[str, Any]] | None = None
    include_base_tools: bool | None = None
    include_multi_agent_tools: bool = False
    include_base_tool_rules: bool | None = None
    include_default_source: bool = False
    memory_variables: dict[str, str] | None = None
    from_template: str | None = None
    template: bool = False


class UpdateAgent(AgentOptions, kw_only=True):
    """Changes of an agent. A field that is null or absent stays as it is."""

    name: str | None = None
    message_ids: list[str] | None = None


class Included(msgspec.Struct, kw_only=True):
    """What an answer has beyond what it always has."""

    include: list[str] = []
    include_relationships: list[str] | None = None

    def parts(self) -> frozenset[str]:
        """Returns the names of the parts that were asked for."""
        return parts_of(self.include, self.include_relationships)


class AgentFilters(msgspec.Struct, kw_only=True):
    """The filters of lists and counts."""

    name: str | None = None
    tags: list[str] | None = None
    match_all_tags: bool = False
    query_text: str | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    identity_id: str | None = None
    identifier_keys: list[str] | None = None
    last_stop_reason: str | None = None
    created_by_id: str | None = None
    show_hidden_agents: bool = False


class ListAgents(AgentFilters, kw_only=True):
    """The query of a list of agents."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    include: list[str] = []
    include_relationships: list[str] | None = None
    order_by: Literal["created_at", "updated_at", "last_run_completion"] | None = None
    sort_by: str | None = None
    ascending: bool = False


def parts_of(include: list[str], relationships: list[str] | None) -> frozenset[str]:
    """Returns the names of the parts of agents that a query asks for."""
    return frozenset(name.removeprefix("agent.") for name in include) | frozenset(relationships or ())
