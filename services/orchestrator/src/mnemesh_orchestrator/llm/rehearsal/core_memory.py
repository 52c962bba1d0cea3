"""Reads the human block of a system message, and finds the edit that stores a name or a fact in it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_orchestrator.llm.rehearsal.facts import Fact
from mnemesh_orchestrator.llm.rehearsal.sentences import SetName
from mnemesh_orchestrator.model.models import ToolSchema

LABEL: Final = "human"
EDITING_TOOLS: Final = (
    "memory_replace",
    "core_memory_replace",
    "memory",
    "core_memory_append",
    "memory_insert",
    "memory_rethink",
)

_SECTION = re.compile(r"<memory_blocks>(.*)</memory_blocks>", re.DOTALL)
_VALUE = re.compile(rf"<{LABEL}>.*?<value>\n?(.*?)\n?</value>\s*</{LABEL}>", re.DOTALL)
_LINE_NUMBER = re.compile(r"^\s*\d+→ ?", re.MULTILINE)
_NAME_LINE = re.compile(r"^(?P<head>.*?\bname[ \t]*(?::|=|\bis\b)[ \t]*+)(?P<rest>.*)$", re.IGNORECASE | re.MULTILINE)
_UNKNOWN = re.compile(
    r"^(?:$|\?+$|unknown\b|none\b|n/a\b|tbd\b|(?:not|still|yet)\b.*|<[^>]*>$|\[[^\]]*\]$|\{[^}]*\}$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class NameLine:
    """A line of the block with a name or a space for it: the text before, the name ("" if unknown), and the rest."""

    head: str
    name: str
    tail: str

    @property
    def text(self) -> str:
        """The part of the line that the edit replaces."""
        return self.head + self.name + self.tail

    def with_name(self, name: str) -> str:
        """Returns the line with that name."""
        return f"{self.head if self.head[-1:].isspace() else self.head + ' '}{name}{self.tail}"


@dataclass(frozen=True, slots=True)
class MemoryEdit:
    """A call that edits the block."""

    tool: str
    arguments: Mapping[str, Any]


def human_block(system: str) -> str | None:
    """Returns the value of the human block without line numbers."""
    section = _SECTION.search(system)
    match = _VALUE.search(section[1]) if section else None
    if match is None:
        return None
    value = match[1]
    lines = value.split("\n")
    return _LINE_NUMBER.sub("", value) if value and all(_LINE_NUMBER.match(line) for line in lines) else value


def name_line(block: str) -> NameLine | None:
    """Returns the line of the block for the human's name."""
    for match in _NAME_LINE.finditer(block):
        name = match["rest"].rstrip(" \t.")
        if _UNKNOWN.match(name) or len(name.split()) <= 8:
            return NameLine(match["head"], name, match["rest"][len(name) :])
    return None


def known_name(block: str | None) -> str | None:
    """Returns the human's name if the block holds it."""
    line = name_line(block) if block else None
    return None if line is None or _UNKNOWN.match(line.name) else line.name


def name_edit(name: str, block: str, tools: Mapping[str, ToolSchema]) -> MemoryEdit | None:
    """Returns the edit that stores a name: it changes the line for it, or adds a line.

    Returns None if no offered tool can do it.
    """
    line = name_line(block)
    if line is not None:
        old, new = line.text, line.with_name(name)
        if block.count(old) > 1:  # A replacement must be unambiguous.
            old, new = block, block.replace(old, new, 1)
        if (edit := _replace_edit(old, new, block, tools)) is not None:
            return edit
    return _append_edit(f"Name: {name}", block, tools)


def fact_edit(fact: Fact, block: str, tools: Mapping[str, ToolSchema]) -> MemoryEdit | None:
    """Returns the edit that stores a fact: it replaces the line that the fact contradicts, or adds a line.

    Returns None if the block has the fact, or if no offered tool can store it.
    """
    if _has_line(block, fact.line):
        return None
    old = _contradicted(block, fact)
    if old is not None and block.count(old) == 1 and (edit := _replace_edit(old, fact.line, block, tools)) is not None:
        return edit
    return _append_edit(fact.line, block, tools)


def with_fact(block: str, fact: Fact | SetName) -> str:
    """Returns the value of the block with a fact or a name in it."""
    if isinstance(fact, SetName):
        line = name_line(block)
        if line is not None:
            return block.replace(line.text, line.with_name(fact.name), 1)
        fact = Fact(f"Name: {fact.name}")
    if _has_line(block, fact.line):
        return block
    old = _contradicted(block, fact)
    if old is not None:
        return block.replace(old, fact.line, 1)
    return f"{block}\n{fact.line}" if block.strip() else fact.line


def _has_line(block: str, line: str) -> bool:
    return line.casefold() in (each.strip().casefold() for each in block.split("\n"))


def _contradicted(block: str, fact: Fact) -> str | None:
    """Returns the line of the block that cannot be true beside the fact."""
    if fact.key is None:
        return None
    return next((line for line in block.split("\n") if line.casefold().startswith(fact.key.casefold())), None)


def _replace_edit(old: str, new: str, block: str, tools: Mapping[str, ToolSchema]) -> MemoryEdit | None:
    for tool in ("memory_replace", "core_memory_replace", "memory"):
        if tool in tools:
            parameters = tools[tool].parameters.get("properties") or {}
            target = {"command": "str_replace", "path": f"/memories/{LABEL}"} if tool == "memory" else {"label": LABEL}
            before = _first(parameters, "old_str", "old_string", "old_content")
            after = _first(parameters, "new_str", "new_string", "new_content")
            return MemoryEdit(tool, {**target, before: old, after: new})
    return _rethink_edit(block.replace(old, new, 1), tools)


def _append_edit(line: str, block: str, tools: Mapping[str, ToolSchema]) -> MemoryEdit | None:
    if "core_memory_append" in tools:
        return MemoryEdit("core_memory_append", {"label": LABEL, "content": line})
    if "memory_insert" in tools:
        text = _first(tools["memory_insert"].parameters.get("properties") or {}, "new_str", "new_string", "insert_text")
        return MemoryEdit("memory_insert", {"label": LABEL, text: line, "insert_line": -1})
    if "memory" in tools:
        path = f"/memories/{LABEL}"
        target = {"command": "insert", "path": path, "insert_line": -1}
        return MemoryEdit("memory", {**target, "insert_text": line})
    return _rethink_edit(f"{block}\n{line}" if block.strip() else line, tools)


def _rethink_edit(value: str, tools: Mapping[str, ToolSchema]) -> MemoryEdit | None:
    return MemoryEdit("memory_rethink", {"label": LABEL, "new_memory": value}) if "memory_rethink" in tools else None


def _first(parameters: Mapping[str, Any], *names: str) -> str:
    return next((name for name in names if name in parameters), names[0])
