"""Agents and conversations as the orchestrator keeps them."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mnemesh_orchestrator.model.models import ModelSettings, ResponseFormat
from mnemesh_orchestrator.model.rules import ToolRule


class AgentType(StrEnum):
    """Names a row of the table of agent types."""

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
    """Until ACTIVE an agent is in no list; once DELETING it is gone for everybody."""

    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


class PromptPolicy(StrEnum):
    """When the stored system message follows the memory that it shows."""

    REBUILD = "rebuild"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class AttachedTool:
    """A tool of an agent: a built-in one has no id."""

    name: str
    tool_id: str | None = None
    requires_approval: bool | None = None

    @property
    def builtin(self) -> bool:
        """The orchestrator runs it itself."""
        return self.tool_id is None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where an agent came from; carried for clients, not interpreted."""

    created_by_id: str = ""
    last_updated_by_id: str = ""
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


class LinkKind(StrEnum):
    """What agents are found by beside what they are; all but the first two are fields of their provenance."""

    IDENTITY = "identity"
    TOOL = "tool"
    PROJECT = "project_id"
    TEMPLATE = "template_id"
    BASE_TEMPLATE = "base_template_id"
    CREATED_BY = "created_by_id"

    @classmethod
    def of_origin(cls) -> tuple["LinkKind", ...]:
        """The fields of provenance."""
        return cls.PROJECT, cls.TEMPLATE, cls.BASE_TEMPLATE, cls.CREATED_BY


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """How a full window is made smaller. Kept for the compactors; None takes their defaults."""

    mode: str = "sliding_window"
    model: str | None = None
    model_settings: ModelSettings | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool | None = None
    clip_chars: int | None = None
    sliding_window_percentage: float | None = None
    trigger_ratio: float | None = None
    memory_scope: str | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """How far off the estimates of an agent's requests to one model are, learnt from what its provider counts.

    A request is expected to take what it is estimated at, times `factor`.
    `error` is that of the newest such expectation, as a share of what was
    counted: 0.1 is a tenth too much. `answers` says how many it is learnt from.
    """

    model: str
    factor: float = 1.0
    error: float = 0.0
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent's record. What it remembers is in the tiers, under its id."""

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
    """What the model is told behind the returns of a step's tools, where the turn goes on by itself."""
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
    """As they stood at the end of its last run, by model."""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def memory_scope(self) -> str | None:
        """The name under which it shares episodes and facts, where it does."""
        return None if self.compaction_settings is None else self.compaction_settings.memory_scope

    def tool(self, name: str) -> AttachedTool | None:
        """The attached tool of that name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A thread of an agent, with a window of its own in recall. Model and settings go before the agent's."""

    id: str
    organization_id: str
    agent_id: str
    is_default: bool
    created_at: datetime
    updated_at: datetime
    summary: str | None = None
    description: str | None = None
    archived: bool = False
    model: str | None = None
    model_settings: ModelSettings | None = None
    forked_from_id: str | None = None
    created_by_id: str = ""
    last_message_at: datetime | None = None
    isolated_block_labels: tuple[str, ...] = ()
    """Labels of blocks that it has for itself: copies, which take the place of the agent's in this conversation."""
    isolated_block_ids: tuple[str, ...] = ()

    @property
    def holder_id(self) -> str | None:
        """Its id, where it holds blocks for itself."""
        return self.id if self.isolated_block_labels else None


class ConversationState(StrEnum):
    """Until ACTIVE a conversation is in no list; once DELETING it is gone for everybody."""

    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ConversationOrigin:
    """The record of a creation under way: what it forks, and the request that its failure must set free again."""

    until_message_id: str | None = None
    method: str | None = None
    request_id: str | None = None
