"""Tools: what their authors write, what is stored, and the bounds of both."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import cache
from importlib import resources
from typing import Final, Self

from mnemesh_kit.secret_variables import SecretVariable
from mnemesh_types.tools import Requirement, SourceType, ToolType

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


@dataclass(frozen=True, slots=True)
class ToolSecret:
    """An environment variable of a tool."""

    name: str
    value: str | None = field(default=None, repr=False)
    """The value of a request; None keeps the stored one."""
    stored: SecretVariable | None = None
    """The variable as it is stored."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The definition of a tool. `definitions.complete_spec` validates it and fills in its name, schema and defaults."""

    name: str = ""
    type: ToolType = ToolType.CUSTOM
    description: str | None = None
    source_code: str | None = None
    source_type: SourceType = SourceType.PYTHON
    json_schema: str = ""
    """A JSON object as text, with `name`, `description` and `parameters`."""
    args_json_schema: str | None = None
    """The JSON schema of the arguments as text. It replaces the schema that the source would yield."""
    return_char_limit: int = 0
    pip_requirements: tuple[Requirement, ...] = ()
    npm_requirements: tuple[Requirement, ...] = ()
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool = False
    idempotent: bool = False
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    """A JSON object as text."""
    timeout_seconds: int = 0
    allow_network: bool = False
    network_hosts: tuple[str, ...] = ()
    secrets: tuple[ToolSecret, ...] = ()
    mcp_server_id: str | None = None
    mcp_tool_name: str | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None

    @property
    def packages_key(self) -> tuple[object, ...]:
        """What the lock of the packages depends on."""
        return self.source_type, self.pip_requirements, self.npm_requirements


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
    package_lock: str | None = None
    """The exact versions of the packages and the hashes of their files; None before they are resolved."""


@dataclass(frozen=True, slots=True)
class RestoredTool:
    """The values of a tool that was exported, which a restored one keeps."""

    id: str
    created_at: datetime
    updated_at: datetime
    created_by_id: str
    last_updated_by_id: str
    revision: int

    def applied(self, tool: Tool) -> Tool:
        """Returns a new tool with these values."""
        return replace(
            tool,
            id=self.id,
            created_at=self.created_at,
            updated_at=self.updated_at,
            created_by_id=self.created_by_id or tool.created_by_id,
            last_updated_by_id=self.last_updated_by_id or tool.last_updated_by_id,
            revision=max(self.revision, 1),
        )


class ToolOrder(Enum):
    """The keys that lists of tools can be sorted by."""

    CREATE_TIME = "created_at"
    UPDATE_TIME = "updated_at"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class BuiltinTools:
    """The definitions of the built-in tools of one release."""

    specs: tuple[ToolSpec, ...] = ()
    release: str = ""
    """A digest of the definitions."""

    @classmethod
    @cache
    def load(cls) -> Self:
        """Returns the built-in tools of this release, from `builtin_tools.json`."""
        text = resources.files("mnemesh_types").joinpath("builtin_tools.json").read_text(encoding="utf-8")
        specs = tuple(
            ToolSpec(
                name=schema["name"],
                type=ToolType.BUILTIN,
                json_schema=json.dumps(schema, ensure_ascii=False),
                return_char_limit=DEFAULT_RETURN_CHARS,
                idempotent=True,
                timeout_seconds=DEFAULT_TIMEOUT_SECONDS,
            )
            for schema in json.loads(text)
        )
        return cls(specs, hashlib.sha256(text.encode()).hexdigest())
