"""Agents, and the rules that their fields follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.secret_variables import SecretVariable
from mnemesh_kit.text import require_json_object, require_no_nul, require_optional_text, require_texts
from mnemesh_kit.time import zone_from_name
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.compaction import CompactionSettings, require_valid_compaction_settings
from mnemesh_orchestrator.model.filters import require_searchable_fields
from mnemesh_orchestrator.model.memory_extraction import MemoryExtractionSettings, require_valid_extraction
from mnemesh_orchestrator.model.models import (
    ModelSettings,
    ResponseFormat,
    require_valid_format,
    require_valid_settings,
)
from mnemesh_orchestrator.model.prompts import MAX_SYSTEM_PROMPT
from mnemesh_orchestrator.model.rules import ToolRule, valid_rules

MAX_NAME: Final = 512
_MAX_CONTINUATION: Final = 2_000
_MAX_TIMEOUT: Final = 366 * 86_400


class AgentType(StrEnum):
    """The name of a row in the table of agent types."""

    MEMGPT = "memgpt_agent"
    MEMGPT_V2 = "memgpt_v2_agent"
    LETTA_V1 = "letta_v1_agent"
    REACT = "react_agent"
    WORKFLOW = "workflow_agent"
    SPLIT_THREAD = "split_thread_agent"
    SLEEPTIME = "sleeptime_agent"
    VOICE_CONVO = "voice_convo_agent"
    VOICE_SLEEPTIME = "voice_sleeptime_agent"


class AgentState(StrEnum):
    """The state of an agent. Only ACTIVE agents are visible to clients."""

    CREATING = "creating"
    IMPORTING = "importing"
    """The client that imports the agent finishes it, not the server."""
    ACTIVE = "active"
    DELETING = "deleting"


class PromptPolicy(StrEnum):
    """The events after which the system message is rendered again: changes of memory, or compaction and reset only."""

    REBUILD = "rebuild"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class AttachedTool:
    """A tool of an agent. A built-in tool has no id."""

    name: str
    tool_id: str | None = None
    requires_approval: bool | None = None

    @property
    def builtin(self) -> bool:
        """True if the orchestrator runs the tool itself."""
        return self.tool_id is None


class LinkKind(StrEnum):
    """The relations by which agents can be found. All but the first three are fields of the provenance."""

    IDENTITY = "identity"
    TOOL = "tool"
    CREATED_FOR = "created_for_agent_id"
    PROJECT = "project_id"
    TEMPLATE = "template_id"
    BASE_TEMPLATE = "base_template_id"
    CREATED_BY = "created_by_id"

    @classmethod
    def of_origin(cls) -> tuple["LinkKind", ...]:
        """The kinds that are fields of the provenance."""
        return cls.PROJECT, cls.TEMPLATE, cls.BASE_TEMPLATE, cls.CREATED_BY


@dataclass(frozen=True, slots=True)
class Correction:
    """The error of token estimates for an agent and a model, learned from the provider's counts.

    A request is expected to take its estimate times `factor`. `error` is the error of the latest such expectation as a
    share of the counted tokens: 0.1 is ten percent too many. `answers` is the number of answers it was learned from.
    """

    model: str
    factor: float = 1.0
    error: float = 0.0
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Agent:
    """The record of an agent. The memory services hold its memory under its id."""

    id: str
    organization_id: str
    name: str
    type: AgentType
    system: str
    model: str
    created_at: datetime
    updated_at: datetime
    default_conversation_id: str
    state: AgentState = AgentState.CREATING
    description: str | None = None
    model_settings: ModelSettings = ModelSettings()
    embedder: str | None = None
    tools: tuple[AttachedTool, ...] = ()
    tool_rules: tuple[ToolRule, ...] = ()
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    time_zone: str = "UTC"
    prompt_policy: PromptPolicy = PromptPolicy.REBUILD
    message_buffer_autoclear: bool = False
    continuation_message: str | None = None
    """A message to the model after the tool returns of a step, if the turn continues by itself."""
    compaction_settings: CompactionSettings | None = None
    response_format: ResponseFormat | None = None
    enable_sleeptime: bool | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    hidden: bool = False
    identity_ids: tuple[str, ...] = ()
    approval_timeout_seconds: float | None = None
    """The time after which a pending approval is denied; 0 never denies, None is the server's setting."""
    revision: int = 1
    last_stop_reason: str | None = None
    last_run_completed_at: datetime | None = None
    last_run_ms: int | None = None
    corrections: tuple[Correction, ...] = ()
    """Corrections of token estimates by model, as of the end of the last run."""
    created_for_agent_id: str | None = None
    """The agent whose partner this agent was created to be, and with which it is deleted."""
    provenance: Provenance = field(default_factory=Provenance)
    memory_extraction: MemoryExtractionSettings | None = None
    """The extraction of facts from the agent's messages without a compaction."""
    secrets: tuple[SecretVariable, ...] = ()
    """The environment variables of the agent's tools."""

    holds_folders: bool = False
    """Whether the agent holds folders of the files service. Otherwise its turns never ask that service."""
    folders_revision: int = 0
    """The revision of its directories as of which `holds_folders` is known."""

    @property
    def memory_scope(self) -> str | None:
        """The scope of episodes and facts that the agent shares with others; None if they are its own."""
        return None if self.compaction_settings is None else self.compaction_settings.memory_scope

    def tool(self, name: str) -> AttachedTool | None:
        """Returns the attached tool with this name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """The conditions of a list or a count; an agent must meet all that are set. Only ACTIVE agents are found."""

    agent_ids: tuple[str, ...] = ()
    name: str | None = None
    text_search: str | None = None
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    types: tuple[AgentType, ...] = ()
    hidden: bool | None = None
    last_stop_reason: str | None = None
    links: tuple[tuple[LinkKind, str], ...] = ()
    """Relations that the agent must have."""
    identifier_key: str | None = None
    """The key of an identity that the agent must have."""


class AgentOrder(StrEnum):
    """The keys that lists of agents can be sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
    LAST_RUN_COMPLETED_AT = "last_run_completed_at"


def valid_agent_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns new values of the fields of an agent, with repeated tags, rules and identities removed.

    Args:
        values: The values by the names of the fields of `Agent` and `AgentDraft`. Fields without a rule are not
            checked.

    Raises:
        InvalidArgument: A value breaks its rule. Metadata: field, such as `agent.tags`.
    """
    return {name: _RULES[name](value) if name in _RULES else value for name, value in values.items()}


def require_name(name: str) -> str:
    """Returns the new name of an agent. Raises InvalidArgument if it is empty."""
    if not name:
        raise InvalidArgument("agent.name must not be empty.", field="agent.name")
    return name


def _valid_name(name: str) -> str:
    if len(name) > MAX_NAME or any(character < " " for character in name):
        raise InvalidArgument(
            f"agent.name must be at most {MAX_NAME} characters without control characters.", field="agent.name"
        )
    return name


def _valid_tags(tags: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(require_texts(tags, "agent.tags", min_chars=1, max_chars=MAX_NAME)))


def _valid_identities(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(require_id(identity_id, "identity", "agent.identity_ids") for identity_id in ids))


def _valid_timeout(seconds: float, field: str) -> float:
    if not 0 <= seconds <= _MAX_TIMEOUT:
        raise InvalidArgument(f"{field} must be between 0 and 366 days.", field=field)
    return seconds


def _valid_time_zone(name: str) -> str:
    zone_from_name(name, "agent.time_zone")
    return name


def _optional(check: Callable[[Any, str], Any], field: str) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value, field)


_RULES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "name": _valid_name,
    "system": lambda text: require_optional_text(text, "agent.system", max_chars=MAX_SYSTEM_PROMPT),
    "model_settings": lambda settings: require_valid_settings(settings, "agent.model_settings"),
    "tool_rules": lambda rules: valid_rules(rules, "agent.tool_rules"),
    "tags": _valid_tags,
    "metadata": _optional(require_json_object, "agent.metadata"),
    "time_zone": _valid_time_zone,
    "continuation_message": lambda text: require_optional_text(
        text, "agent.continuation_message", max_chars=_MAX_CONTINUATION, allow_blank=False
    ),
    "compaction_settings": _optional(require_valid_compaction_settings, "agent.compaction_settings"),
    "memory_extraction": _optional(require_valid_extraction, "agent.memory_extraction"),
    "response_format": _optional(require_valid_format, "agent.response_format"),
    "identity_ids": _valid_identities,
    "approval_timeout_seconds": _optional(_valid_timeout, "agent.approval_timeout"),
}


def require_valid_agent_filter(filter_: AgentFilter) -> AgentFilter:
    """Returns `filter_` if agents can be searched with it. Raises InvalidArgument."""
    for kind, value in filter_.links:
        require_no_nul(value, f"filter.{kind}")
    return require_searchable_fields(filter_)
