"""The JSON of agents, their parts and their files."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from mnemesh_gateway.letta.schemas.groups import Group, Identity
from mnemesh_gateway.letta.schemas.memory import Block, CreateBlock
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


class RunTool(msgspec.Struct, kw_only=True):
    """The arguments of a tool."""

    args: dict[str, Any] = {}


class ToolResult(msgspec.Struct, kw_only=True):
    """The result of a tool."""

    status: str
    func_return: Any = None
    agent_state: None = None
    stdout: list[str] | None = None
    stderr: list[str] | None = None
    sandbox_config_fingerprint: str | None = None


class Approval(msgspec.Struct, kw_only=True):
    """Whether calls of a tool wait for an approval."""

    requires_approval: bool | None = None


class AgentFile(msgspec.Struct, kw_only=True):
    """A file as an agent holds it."""

    id: str
    file_id: str
    file_name: str
    folder_id: str
    folder_name: str
    is_open: bool
    last_accessed_at: datetime | None = None
    visible_content: str | None = None
    start_line: int | None = None
    end_line: int | None = None


class AgentFiles(msgspec.Struct, kw_only=True):
    """A page of files."""

    files: list[AgentFile]
    next_cursor: str | None = None
    has_more: bool = False


class ListAgentFiles(msgspec.Struct, kw_only=True):
    """The query of a list of files."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    cursor: str | None = None
    is_open: bool | None = None


class ListPassages(msgspec.Struct, kw_only=True):
    """The query of a list of passages."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    search: str | None = None
    ascending: bool | None = None


class SearchPassages(msgspec.Struct, kw_only=True):
    """What to search in an agent's archives."""

    query: str
    tags: list[str] | None = None
    tag_match_mode: Literal["any", "all"] = "any"
    top_k: int | None = None
    start_datetime: datetime | None = None
    end_datetime: datetime | None = None


class PassageResult(msgspec.Struct, kw_only=True):
    """A passage that was found."""

    id: str
    timestamp: str
    content: str
    tags: list[str]


class PassageResults(msgspec.Struct, kw_only=True):
    """The passages that were found, best first."""

    results: list[PassageResult]
    count: int


class RecompileQuery(msgspec.Struct, kw_only=True):
    """Whether the new text is stored."""

    dry_run: bool = False
    update_timestamp: bool = False


class ContextQuery(msgspec.Struct, kw_only=True):
    """The conversation of a context window; the agent's own if it is null or absent."""

    conversation_id: str | None = None


class ContextWindow(msgspec.Struct, kw_only=True):
    """The texts of a context window and their tokens."""

    context_window_size_max: int
    context_window_size_current: int
    num_messages: int
    num_archival_memory: int
    num_recall_memory: int
    num_tokens_external_memory_summary: int
    external_memory_summary: str
    num_tokens_system: int
    system_prompt: str
    num_tokens_core_memory: int
    core_memory: str
    num_tokens_memory_filesystem: int = 0
    memory_filesystem: str | None = None
    num_tokens_tool_usage_rules: int = 0
    tool_usage_rules: str | None = None
    num_tokens_directories: int = 0
    directories: str | None = None
    num_tokens_summary_memory: int = 0
    summary_memory: str | None = None
    num_tokens_functions_definitions: int = 0
    functions_definitions: list[dict[str, Any]] = []
    num_tokens_messages: int = 0
    messages: list[dict[str, Any]] = []


class ExportOptions(msgspec.Struct):
    """What an agent file has."""

    scrub_messages: bool = False
    use_legacy_format: bool = False
    conversation_id: str | None = None


class ExportBody(msgspec.Struct):
    """The options of an export. Skills are JSON objects; the file contains them unchanged."""

    skills: list[dict[str, Any]] = []
    scrub_messages: bool = False
    conversation_id: str | None = None


class ImportForm(msgspec.Struct):
    """The text fields of the form of an import."""

    name: str | None = None
    override_name: str | None = None
    model: str | None = None
    override_model_handle: str | None = None
    embedding: str | None = None
    override_embedding_handle: str | None = None
    secrets: str | None = None
    env_vars_json: str | None = None
    append_copy_suffix: bool = False
    override_existing_tools: bool = False
    strip_messages: bool = False


class ImportedAgents(msgspec.Struct):
    """The agents that an import created, and a sentence about each part of the file that it did not take."""

    agent_ids: list[str]
    left_out: list[str] = []
