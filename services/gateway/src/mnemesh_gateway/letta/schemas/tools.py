"""Tools."""

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
