"""The tools that agents have because of their type, their settings or a request."""

from dataclasses import replace
from typing import Final

from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.compaction.modes import mode_of
from mnemesh_orchestrator.model.agents import Agent, AttachedTool
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.rules import ContinueLoop

MESSAGE_SEARCH: Final = "conversation_search"
EPISODIC_SEARCH: Final = "episodic_memory_search"


def attached_tool(tool: CustomTool) -> AttachedTool:
    """Returns a stored tool as a tool of an agent. A built-in tool is attached by its name only.

    Raises:
        NotFound: This server does not have the built-in tool.
    """
    if not tool.builtin:
        return AttachedTool(tool.name, tool.id)
    if tool.name not in BUILTIN_SCHEMAS:
        raise NotFound(f"This server has no built-in tool {tool.name}.", resource_id=tool.id)
    return AttachedTool(tool.name)


def base_tools(names: tuple[str, ...], settings: CompactionSettings | None) -> tuple[str, ...]:
    """Returns the base tools of a new agent: `names`, and the search of episodes if it searches messages and keeps
    episodes.
    """
    if mode_of(settings).summarizer != "episodic" or MESSAGE_SEARCH not in names:
        return names
    index = names.index(MESSAGE_SEARCH) + 1
    return (*names[:index], EPISODIC_SEARCH, *names[index:])


def with_episodic_search(agent: Agent) -> Agent:
    """Returns an agent whose compaction mode has changed, with the search of episodes and its rule if it needs them."""
    names = tuple(tool.name for tool in agent.tools)
    wanted = base_tools(names, agent.compaction_settings)
    if EPISODIC_SEARCH in names or wanted == names:
        return agent
    by_name = {tool.name: tool for tool in agent.tools}
    rules = agent.tool_rules
    if ContinueLoop(MESSAGE_SEARCH) in rules:
        rules = (*rules, ContinueLoop(EPISODIC_SEARCH))
    return replace(agent, tools=tuple(by_name.get(name) or AttachedTool(name) for name in wanted), tool_rules=rules)
