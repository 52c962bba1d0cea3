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
