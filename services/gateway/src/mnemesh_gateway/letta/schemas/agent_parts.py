"""What belongs to an agent: its tools' results, its files, its passages, its context window."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec


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
