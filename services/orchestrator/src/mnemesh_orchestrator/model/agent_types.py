"""The table of agent types: prompt, loop policy, tools, rules and first messages of a new agent."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from mnemesh_kit.errors import InvalidArgument

from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.rules import ConstrainChildTools, ContinueLoop, ExitLoop, RunFirst, ToolRule


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
