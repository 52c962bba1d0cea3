"""Tools: what a client writes about one, what is stored, and the bounds of both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

DEFAULT_RETURN_CHARS: Final = 50_000
MAX_RETURN_CHARS: Final = 1_000_000
DEFAULT_TIMEOUT_SECONDS: Final = 180
MAX_TIMEOUT_SECONDS: Final = 3_600
MAX_SCHEMA_CHARS: Final = 100_000
MAX_TEXT_CHARS: Final = 20_000
MAX_TAGS: Final = 100
MAX_TAG_CHARS: Final = 200
MAX_REQUIREMENTS: Final = 100
MAX_BATCH: Final = 1_000


class ToolType(Enum):
    """What runs a tool."""

    CUSTOM = "custom"
    BUILTIN = "builtin"
    MCP = "mcp"
    CLIENT = "client"


class SourceType(Enum):
    """The language of a tool's source."""

    PYTHON = "python"
    TYPESCRIPT = "typescript"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that a tool needs."""

    name: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """All of a tool that its author writes, and the schema that was made where none was given."""

    name: str = ""
    type: ToolType = ToolType.CUSTOM
    description: str | None = None
    source_code: str | None = None
    source_type: SourceType = SourceType.PYTHON
    json_schema: str = ""
    args_json_schema: str | None = None
    return_char_limit: int = 0
    pip_requirements: tuple[Requirement, ...] = ()
    npm_requirements: tuple[Requirement, ...] = ()
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool = False
    idempotent: bool = False
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    timeout_seconds: int = 0
    allow_network: bool = False
    mcp_server_id: str | None = None
    mcp_tool_name: str | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A stored tool."""

    id: str
    organization_id: str
    spec: ToolSpec
    revision: int
    created_at: datetime
    updated_at: datetime
    created_by_id: str
    last_updated_by_id: str


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Conditions of a list or a count; all that are given must hold."""

    tool_ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    types: tuple[ToolType, ...] = ()
    exclude_types: tuple[ToolType, ...] = ()
    text_search: str | None = None
    tags_any: tuple[str, ...] = ()
    mcp_server_id: str | None = None


class ToolOrder(Enum):
    """What a list is sorted by; ties go by id."""

    CREATE_TIME = "created_at"
    UPDATE_TIME = "updated_at"
    NAME = "name"


def shortened(text: str, limit: int, total: int) -> tuple[str, bool]:
    """`text` cut to `limit` characters with a note that gives both sizes, and whether it was cut.

    Args:
        text: the beginning of a result, or all of it.
        limit: how many characters are kept, the note not counted.
        total: the length of the whole result.
    """
    if total <= limit:
        return text, False
    return f"{text[:limit]}\n[The result was cut: it has {total} characters, and the limit is {limit}.]", True
