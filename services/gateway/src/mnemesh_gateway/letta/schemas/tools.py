"""The JSON of tools and MCP servers."""

from __future__ import annotations

from typing import Any

import msgspec


class Requirement(msgspec.Struct, kw_only=True):
    """A package that a tool needs."""

    name: str
    version: str | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool, as agents and lists show it."""

    id: str
    tool_type: str
    description: str | None = None
    source_type: str | None = None
    name: str | None = None
    tags: list[str] = []
    source_code: str | None = None
    json_schema: dict[str, Any] | None = None
    args_json_schema: dict[str, Any] | None = None
    return_char_limit: int | None = None
    pip_requirements: list[Requirement] | None = None
    npm_requirements: list[Requirement] | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    metadata_: dict[str, Any] | None = None
    project_id: str | None = None


class ToolFields(msgspec.Struct, kw_only=True):
    """The fields of a tool that clients set. A field that is null or absent stays as it is."""

    description: str | None = None
    tags: list[str] | None = None
    source_code: str | None = None
    source_type: str | None = None
    json_schema: dict[str, Any] | None = None
    args_json_schema: dict[str, Any] | None = None
    return_char_limit: int | None = None
    pip_requirements: list[Requirement] | None = None
    npm_requirements: list[Requirement] | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    metadata_: dict[str, Any] | None = None


class SearchTools(msgspec.Struct, kw_only=True):
    """What to search for among tools."""

    query: str | None = None
    search_mode: str = "hybrid"
    tool_types: list[str] | None = None
    tags: list[str] | None = None
    limit: int = 50


class ToolHit(msgspec.Struct, kw_only=True):
    """A tool that was found."""

    tool: Tool
    embedded_text: str | None = None
    fts_rank: int | None = None
    vector_rank: int | None = None
    combined_score: float = 0.0


class ToolSource(msgspec.Struct, kw_only=True):
    """Source code whose schema is generated."""

    code: str
    source_type: str | None = None


class RunSource(msgspec.Struct, kw_only=True):
    """Source code to run as a tool once."""

    source_code: str
    args: dict[str, Any]
    env_vars: dict[str, str] | None = None
    name: str | None = None
    source_type: str | None = None
    args_json_schema: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    pip_requirements: list[Requirement] | None = None
    npm_requirements: list[Requirement] | None = None


class McpConfig(msgspec.Struct, kw_only=True):
    """How a server is reached. Which fields apply depends on the type."""

    mcp_server_type: str | None = None
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | None = None
    custom_headers: dict[str, str] | None = None


class McpConfigChanges(msgspec.Struct, kw_only=True):
    """Changes of how a server is reached. What is absent stays as it is.

    Null clears a token, headers and an environment, and leaves the other fields. An empty value of a header or a
    variable stands for the stored one, which clients do not see.
    """

    mcp_server_type: str | None = None
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | msgspec.UnsetType | None = msgspec.UNSET
    custom_headers: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET


class CreateMcpServer(msgspec.Struct, kw_only=True):
    """A server to create."""

    server_name: str
    config: McpConfig


class UpdateMcpServer(msgspec.Struct, kw_only=True):
    """Changes of a server. The name stays if it is null or absent."""

    config: McpConfigChanges
    server_name: str | None = None


class McpServer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A server. Values of secrets are never shown."""

    id: str
    server_name: str
    mcp_server_type: str
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | None = None
    custom_headers: dict[str, str] | None = None


class RefreshQuery(msgspec.Struct, kw_only=True):
    """The agent on whose behalf a server is asked."""

    agent_id: str | None = None


class Refreshed(msgspec.Struct, kw_only=True):
    """The names of the tools that a refresh changed."""

    added: list[str]
    updated: list[str]
    deleted: list[str]


class RunMcpTool(msgspec.Struct, kw_only=True):
    """The arguments of a tool."""

    args: dict[str, Any] = {}


class ExecutedMcpTool(msgspec.Struct, kw_only=True):
    """The result of a tool, or its error message."""

    result: Any
    success: bool


class ServerConfig(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A server under the paths that name it, as clients before 1.0 write and read it. Tokens are never shown."""

    server_name: str
    type: str | None = None
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | None = None
    custom_headers: dict[str, str] | None = None


class UpdateServerConfig(msgspec.Struct, kw_only=True):
    """Changes of such a server. What is absent stays as it is; a new stdio_config replaces the whole one.

    Clients name the token of a server over SSE `token`, and that of another one `auth_token`.
    """

    server_name: str | None = None
    stdio_config: ServerConfig | None = None
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | msgspec.UnsetType | None = msgspec.UNSET
    token: str | msgspec.UnsetType | None = msgspec.UNSET
    custom_headers: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET


class SchemaHealth(msgspec.Struct, kw_only=True):
    """The status of a tool's schema: a provider can enforce it, or not, and the reasons."""

    status: str
    reasons: list[str]


class OfferedTool(msgspec.Struct, kw_only=True, rename="camel"):
    """A tool as its server describes it."""

    name: str
    description: str | None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any] | None
    health: SchemaHealth


class TestedServer(msgspec.Struct, kw_only=True):
    """The tools of a server that answers."""

    status: str
    tools: list[OfferedTool]
