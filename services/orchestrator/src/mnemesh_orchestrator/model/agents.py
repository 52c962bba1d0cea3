"""Agents, and the rules that their fields follow."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.secret_variables import SecretVariable
from mnemesh_kit.text import (
    require_json_object,
    require_no_nul,
    require_optional_text,
    require_searchable_fields,
    require_text,
    require_texts,
)
from mnemesh_kit.time import zone_from_name
from mnemesh_types.agents import CompactionResult, CompactionSettings, ModelSettings
from mnemesh_types.messages import Message
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.episodes import EpisodeCommit, MemoryExtractionSettings, require_valid_extraction
from mnemesh_orchestrator.model.files import MAX_FILES_OPEN, MAX_VIEW_CHARACTERS
from mnemesh_orchestrator.model.models import (
    ResponseFormat,
    require_handle,
    require_valid_format,
    require_valid_settings,
)
from mnemesh_orchestrator.model.rules import (
    ConstrainChildTools,
    ContinueLoop,
    ExitLoop,
    RunFirst,
    ToolRule,
    valid_rules,
)

_MAX_PROMPT: Final = 100_000
_MAX_SCOPE: Final = 255


@dataclass(frozen=True, slots=True)
class Compaction:
    """A smaller window that can replace the one at `base_version`.

    `message_ids` is the whole new window in order: the system message, the summary, and the messages that stay.
    `system_text` is the re-rendered system message. `after_step` is true if the compaction followed a step, and false
    if it came before one. `commits` are memories that recall stores with the new window.
    """

    base_version: int
    message_ids: tuple[str, ...]
    summary: Message
    system_text: str
    result: CompactionResult
    after_step: bool = False
    commits: tuple[EpisodeCommit, ...] = ()


def require_valid_compaction_settings(settings: CompactionSettings, field: str) -> CompactionSettings:
    """Returns `settings` if each value is in its range."""
    for name in ("sliding_window_percentage", "trigger_ratio"):
        share = getattr(settings, name)
        if share is not None and not 0 < share <= 1:
            raise InvalidArgument(f"{field}.{name} must be above 0 and at most 1.", field=f"{field}.{name}")
    if settings.clip_chars is not None and settings.clip_chars < 1:
        raise InvalidArgument(f"{field}.clip_chars must be at least 1.", field=f"{field}.clip_chars")
    if settings.model is not None:
        require_handle(settings.model, f"{field}.model")
    require_optional_text(settings.prompt, f"{field}.prompt", max_chars=_MAX_PROMPT)
    require_optional_text(settings.memory_scope, f"{field}.memory_scope", min_chars=1, max_chars=_MAX_SCOPE)
    if settings.model_settings is not None:
        require_valid_settings(settings.model_settings, f"{field}.model_settings")
    return settings


MAX_SYSTEM_PROMPT: Final = 1_000_000
"""The maximum number of characters of a system prompt."""

MAX_NAME: Final = 512
_MAX_CONTINUATION: Final = 2_000
_MAX_TIMEOUT: Final = 366 * 86_400


def require_prompt_key(key: str, field: str) -> str:
    """Returns the key of a system prompt. Raises InvalidArgument if it is empty or contains a NUL character."""
    return require_text(key, field, min_chars=1)


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


def _within(lowest: int, highest: int) -> Callable[[int, str], int]:
    def check(value: int, field: str) -> int:
        if not lowest <= value <= highest:
            raise InvalidArgument(f"{field} must be between {lowest:,} and {highest:,}.", field=field)
        return value

    return check


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
    "max_files_open": _optional(_within(1, MAX_FILES_OPEN), "agent.max_files_open"),
    "per_file_view_window_char_limit": _optional(
        _within(1, MAX_VIEW_CHARACTERS), "agent.per_file_view_window_char_limit"
    ),
    "identity_ids": _valid_identities,
    "approval_timeout_seconds": _optional(_valid_timeout, "agent.approval_timeout"),
}


def require_valid_agent_filter(filter_: AgentFilter) -> AgentFilter:
    """Returns `filter_` if agents can be searched with it. Raises InvalidArgument."""
    for kind, value in filter_.links:
        require_no_nul(value, f"filter.{kind}")
    return require_searchable_fields(filter_)


class FirstMessages(StrEnum):
    """The messages that follow the system message in a new context window."""

    BOOT = "boot"
    """A first send_message call, its return, and the login event."""
    LOGIN = "login"
    """The login event."""
    NONE = "none"
    """None. The user writes first."""


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """A limit on the size of a window: above `most` messages, the next turn starts with the last `least`."""

    most: int
    least: int


@dataclass(frozen=True, slots=True)
class AgentTypeSpec:
    """One row of the table.

    `policy` names the loop: "v2" speaks with send_message and chains steps with heartbeats, "v3" speaks in plain text
    and continues after every tool call. `rules` order the type's own tools and are added to the base rules.
    `base_rules` is the default for adding the rules of the built-in tools; None leaves it to the model (see
    `base_rules_by_default`). `inner_thoughts` is the default for the "thinking" argument of every tool.
    `numbered_lines` numbers the lines of blocks for the providers of `shows_line_numbers`. `forces_autoclear` starts
    each turn with an empty window, whatever the client set; with `buffer` the turn keeps the last messages. `partner`
    is the type of the agents that maintain the memory of this type in the background; None allows no partner.
    """

    prompt_key: str
    policy: Literal["v2", "v3"]
    base_tools: tuple[str, ...] = ()
    rules: tuple[ToolRule, ...] = ()
    base_rules: bool | None = None
    first_messages: FirstMessages = FirstMessages.BOOT
    inner_thoughts: bool = True
    numbered_lines: bool = False
    shows_blocks: bool = True
    forces_autoclear: bool = False
    buffer: MessageBuffer | None = None
    partner: AgentType | None = AgentType.SLEEPTIME


_SEARCH: Final = ("conversation_search",)
_ARCHIVAL: Final = ("archival_memory_insert", "archival_memory_search")
_EDITS: Final = ("memory_replace", "memory_insert")
_WITH_PARTNER: Final = {
    "v2": ("send_message", *_SEARCH, "archival_memory_search"),
    "v3": (*_SEARCH, "archival_memory_search"),
}

# Letta attaches the archival tools to no agent by default. Here the two chat types get them, so that a new agent can
# use every memory tier.
AGENT_TYPES: Final[Mapping[AgentType, AgentTypeSpec]] = {
    AgentType.MEMGPT: AgentTypeSpec(
        prompt_key="memgpt_v2_chat",
        policy="v2",
        base_tools=(
            "send_message",
            *_SEARCH,
            "core_memory_append",
            "core_memory_replace",
            "memory",
            "memory_apply_patch",
        ),
    ),
    AgentType.MEMGPT_V2: AgentTypeSpec(
        prompt_key="memgpt_v2_chat",
        policy="v2",
        base_tools=("send_message", *_SEARCH, *_ARCHIVAL, *_EDITS),
        numbered_lines=True,
    ),
    AgentType.LETTA_V1: AgentTypeSpec(
        prompt_key="letta_v1",
        policy="v3",
        base_tools=(*_SEARCH, *_ARCHIVAL, *_EDITS),
        base_rules=False,
        first_messages=FirstMessages.NONE,
        inner_thoughts=False,
        numbered_lines=True,
    ),
    AgentType.REACT: AgentTypeSpec(prompt_key="react", policy="v2", shows_blocks=False),
    AgentType.WORKFLOW: AgentTypeSpec(prompt_key="workflow", policy="v2", shows_blocks=False, forces_autoclear=True),
    AgentType.SPLIT_THREAD: AgentTypeSpec(
        prompt_key="memgpt_v2_chat", policy="v2", base_tools=("send_message", *_SEARCH, *_EDITS)
    ),
    AgentType.SLEEPTIME: AgentTypeSpec(
        prompt_key="sleeptime_v2",
        policy="v3",
        base_tools=(*_EDITS, "memory_rethink", "memory_finish_edits"),
        base_rules=True,
        first_messages=FirstMessages.LOGIN,
        numbered_lines=True,
        partner=None,
    ),
    AgentType.VOICE_CONVO: AgentTypeSpec(
        prompt_key="voice_chat",
        policy="v2",
        base_tools=("send_message", "search_memory"),
        buffer=MessageBuffer(most=30, least=15),
        partner=AgentType.VOICE_SLEEPTIME,
    ),
    AgentType.VOICE_SLEEPTIME: AgentTypeSpec(
        prompt_key="voice_sleeptime",
        policy="v2",
        base_tools=("store_memories", "rethink_user_memory", "finish_rethinking_memory"),
        rules=(
            RunFirst("store_memories"),
            ConstrainChildTools("store_memories", ("rethink_user_memory",)),
            ConstrainChildTools("rethink_user_memory", ("rethink_user_memory", "finish_rethinking_memory")),
        ),
        base_rules=True,
        first_messages=FirstMessages.LOGIN,
        partner=None,
    ),
}

MULTI_AGENT_TOOLS: Final = (
    "send_message_to_agent_and_wait_for_reply",
    "send_message_to_agent_async",
    "send_message_to_agents_matching_tags",
)
"""Built-in tools with which agents send messages to others. A supervisor has another one for its group."""

TERMINAL_TOOLS: Final = frozenset(
    {"send_message", "send_message_to_agent_async", "memory_finish_edits", "finish_rethinking_memory"}
)
"""Built-in tools that end the turn if base rules are on."""

CONTINUING_TOOLS: Final = frozenset(
    {
        "conversation_search",
        "open_files",
        "grep_files",
        "semantic_search_files",
        "episodic_memory_search",
        "episodic_memory_correct",
        "episodic_memory_forget",
        "schedule_message",
        "list_scheduled_messages",
        "cancel_scheduled_message",
        "archival_memory_insert",
        "archival_memory_search",
        "core_memory_append",
        "core_memory_replace",
        "memory",
        "memory_apply_patch",
        "memory_replace",
        "memory_insert",
        "memory_rethink",
        "rethink_memory",
        "search_memory",
        "store_memories",
        "rethink_user_memory",
        "send_message_to_agent_and_wait_for_reply",
        "send_message_to_agents_matching_tags",
        "send_message_to_all_agents_in_group",
        "web_search",
        "fetch_webpage",
        "run_code",
        "run_code_with_tools",
    }
)
"""Built-in tools after which the turn continues if base rules are on."""

_RULELESS_MODELS: Final = ("claude-4-sonnet", "claude-3-5-sonnet", "gpt-5", "gemini-2.5-pro")
_MINI: Final = re.compile(r"(?<![a-z])mini(?![a-z])")
_NUMBERING_PROVIDERS: Final = frozenset({"anthropic"})


def base_tool_names(agent_type: AgentType, *, has_partner: bool) -> tuple[str, ...]:
    """Returns the names of the base tools of a new agent.

    An agent with a partner only talks and searches; the partner edits the memory. The base tools of voice agents do not
    edit it in either case.
    """
    spec = AGENT_TYPES[agent_type]
    if not has_partner or spec.partner is not AgentType.SLEEPTIME:
        return spec.base_tools
    return _WITH_PARTNER[spec.policy]


def base_rules_by_default(agent_type: AgentType, model: str) -> bool:
    """Returns whether an agent gets the rules of the built-in tools if the client does not say.

    If the agent type leaves it open, models that keep the order of tools without rules get none, except for their
    "mini" editions.
    """
    fixed = AGENT_TYPES[agent_type].base_rules
    if fixed is not None:
        return fixed
    name = model.lower()
    # "gemini" contains "mini" and is not a mini edition.
    return not any(known in name for known in _RULELESS_MODELS) or _MINI.search(name) is not None


def base_rules(tool_names: Iterable[str]) -> tuple[ToolRule, ...]:
    """Returns the rules of the built-in tools among an agent's tools, in the order of the tools."""
    rules: list[ToolRule] = []
    for name in tool_names:
        if name in TERMINAL_TOOLS:
            rules.append(ExitLoop(name))
        elif name in CONTINUING_TOOLS:
            rules.append(ContinueLoop(name))
    return tuple(rules)


def shows_line_numbers(agent_type: AgentType, provider: str) -> bool:
    """Returns whether the blocks in the prompt have line numbers."""
    return AGENT_TYPES[agent_type].numbered_lines and provider in _NUMBERING_PROVIDERS


def require_continuation(agent_type: AgentType, text: str | None) -> str | None:
    """Returns the continuation message of an agent. Raises InvalidArgument if its type continues by heartbeats."""
    if text is not None and AGENT_TYPES[agent_type].policy == "v2":
        field = "agent.continuation_message"
        raise InvalidArgument(f"{field} must not be set for {agent_type}, which continues by heartbeats.", field=field)
    return text
