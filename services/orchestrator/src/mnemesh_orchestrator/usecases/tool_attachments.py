"""The tools that agents have because of their type, their settings or a request."""

from dataclasses import replace
from typing import Final, Protocol

from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.compaction.planner import mode_of
from mnemesh_orchestrator.model.agents import Agent, AttachedTool
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.memory_extraction import MemoryExtractionSettings
from mnemesh_orchestrator.model.rules import ContinueLoop

MESSAGE_SEARCH: Final = "conversation_search"
EPISODIC_SEARCH: Final = "episodic_memory_search"
EPISODIC_TOOLS: Final = (EPISODIC_SEARCH, "episodic_memory_correct", "episodic_memory_forget")
FILE_TOOLS: Final = ("open_files", "grep_files", "semantic_search_files")


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


class MemorySettings(Protocol):
    """The settings of an agent, or of the draft of one, on which its memory tools depend."""

    @property
    def compaction_settings(self) -> CompactionSettings | None:
        """The settings of compaction."""
        ...

    @property
    def memory_extraction(self) -> MemoryExtractionSettings | None:
        """The settings of the extraction of facts."""
        ...


def keeps_memories(settings: MemorySettings) -> bool:
    """Returns whether an agent learns facts: by compactions, or by extraction after turns or on demand."""
    return mode_of(settings.compaction_settings).summarizer == "episodic" or settings.memory_extraction is not None


def base_tools(names: tuple[str, ...], settings: MemorySettings) -> tuple[str, ...]:
    """Returns the base tools of a new agent: `names`, and the search of facts and episodes if it searches messages and
    keeps memories; with the tools that correct facts if it extracts them without a compaction.
    """
    if not keeps_memories(settings) or MESSAGE_SEARCH not in names:
        return names
    index = names.index(MESSAGE_SEARCH) + 1
    own = EPISODIC_TOOLS if settings.memory_extraction is not None else (EPISODIC_SEARCH,)
    return (*names[:index], *(name for name in own if name not in names), *names[index:])


def with_folders(agent: Agent, revision: int, *, holds_folders: bool) -> Agent:
    """Returns an agent that holds folders, or none any more, as of a revision of its directories.

    The first folder attaches the tools of files, and the last one detaches them. Tools of their names that users wrote
    stay. An earlier revision than the known one changes nothing.
    """
    if revision <= agent.folders_revision:
        return agent
    tools, rules = agent.tools, agent.tool_rules
    if holds_folders and not agent.holds_folders:
        added = tuple(name for name in FILE_TOOLS if agent.tool(name) is None)
        tools = (*tools, *map(AttachedTool, added))
        if any(isinstance(rule, ContinueLoop) for rule in rules):
            rules = (*rules, *(ContinueLoop(name) for name in added if ContinueLoop(name) not in rules))
    elif agent.holds_folders and not holds_folders:
        tools = tuple(tool for tool in tools if tool.name not in FILE_TOOLS or tool.tool_id is not None)
        gone = {tool.name for tool in agent.tools} - {tool.name for tool in tools}
        rules = tuple(rule for rule in rules if not (isinstance(rule, ContinueLoop) and rule.tool_name in gone))
    return replace(agent, tools=tools, tool_rules=rules, holds_folders=holds_folders, folders_revision=revision)


def with_episodic_search(agent: Agent) -> Agent:
    """Returns an agent that keeps memories now, with the tools of facts and episodes and their rules."""
    names = tuple(tool.name for tool in agent.tools)
    wanted = base_tools(names, agent)
    added = tuple(name for name in wanted if name not in names)
    if not added:
        return agent
    by_name = {tool.name: tool for tool in agent.tools}
    rules = agent.tool_rules
    if ContinueLoop(MESSAGE_SEARCH) in rules:
        rules = (*rules, *map(ContinueLoop, added))
    return replace(agent, tools=tuple(by_name.get(name) or AttachedTool(name) for name in wanted), tool_rules=rules)
