"""How tools are held by agents, and which one an agent gets by how it compacts."""

from dataclasses import replace
from typing import Final

from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.compaction.modes import mode_of
from mnemesh_orchestrator.model.agents import Agent, AttachedTool
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.rules import ContinueLoop

RECORD_SEARCH: Final = "conversation_search"
EPISODIC_SEARCH: Final = "episodic_memory_search"


def attachment(tool: CustomTool) -> AttachedTool:
    """The tool as one of an agent's: by its id, and by its name alone where it is built in and only listed there.

    Raises:
        NotFound: it is a built-in tool of somebody else.
    """
    if not tool.builtin:
        return AttachedTool(tool.name, tool.id)
    if tool.name not in BUILTIN_SCHEMAS:
        raise NotFound(f"This server has no built-in tool {tool.name}.", resource_id=tool.id)
    return AttachedTool(tool.name)


def with_episodic_search(names: tuple[str, ...], settings: CompactionSettings | None) -> tuple[str, ...]:
    """The tools that a type begins with; an agent that searches its record and keeps episodes searches those too."""
    if mode_of(settings).summarizer != "episodic" or RECORD_SEARCH not in names:
        return names
    place = names.index(RECORD_SEARCH) + 1
    return (*names[:place], EPISODIC_SEARCH, *names[place:])


def searching_episodes(agent: Agent) -> Agent:
    """The same for an agent whose way to compact has changed: with the tool, and the rule that its like has."""
    names = tuple(tool.name for tool in agent.tools)
    if EPISODIC_SEARCH in names or with_episodic_search(names, agent.compaction_settings) == names:
        return agent
    held = {tool.name: tool for tool in agent.tools}
    wanted = with_episodic_search(names, agent.compaction_settings)
    rules = agent.tool_rules
    if ContinueLoop(RECORD_SEARCH) in rules:
        rules = (*rules, ContinueLoop(EPISODIC_SEARCH))
    return replace(agent, tools=tuple(held.get(name) or AttachedTool(name) for name in wanted), tool_rules=rules)
