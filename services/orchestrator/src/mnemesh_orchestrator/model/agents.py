"""Agents and conversations."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.models import ModelSettings, ResponseFormat
from mnemesh_orchestrator.model.rules import ToolRule


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
    ACTIVE = "active"
    DELETING = "deleting"


class PromptPolicy(StrEnum):
    """When the stored system message is rendered again: after a change of memory, or only by compaction and reset."""

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
    """The relations by which agents can be found. All but the first two are fields of the provenance."""

    IDENTITY = "identity"
    TOOL = "tool"
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
    last_stop_reason: str | None = None
    last_run_completed_at: datetime | None = None
    last_run_ms: int | None = None
    corrections: tuple[Correction, ...] = ()
    """Corrections of token estimates by model, as of the end of the last run."""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def memory_scope(self) -> str | None:
        """The scope of episodes and facts that the agent shares with others; None if they are its own."""
        return None if self.compaction_settings is None else self.compaction_settings.memory_scope

    def tool(self, name: str) -> AttachedTool | None:
        """Returns the attached tool with this name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """Which agents; everything that is given must hold. Only ACTIVE ones are ever found."""

    agent_ids: tuple[str, ...] = ()
    name: str | None = None
    text_search: str | None = None
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    types: tuple[AgentType, ...] = ()
    hidden: bool | None = None
    last_stop_reason: str | None = None
    links: tuple[tuple[LinkKind, str], ...] = ()
    """What it must be linked with."""
    identifier_key: str | None = None
    """Of an identity that it is attached to."""
