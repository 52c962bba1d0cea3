"""The edits that store a name or a fact in the human block, and the work of partners."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_orchestrator.llm.rehearsal.sentences import Fact, SetName, stated_facts
from mnemesh_orchestrator.llm.rehearsal.turn import (
    DISCLAIMER,
    CallTool,
    PastCall,
    Reply,
    TranscriptLine,
    Turn,
    complete,
    transcript_lines,
)
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

FINISH_EDITS: Final = "memory_finish_edits"
REWRITE: Final = "memory_rethink"
STORE: Final = "store_memories"
RETHINK: Final = "rethink_user_memory"
FINISH_RETHINKING: Final = "finish_rethinking_memory"
_ATTEMPTS: Final = 2
_REWRITES: Final = 5
_CONTEXT_CHARACTERS: Final = 120


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


def partner_action(turn: Turn, block: str | None, tools: Mapping[str, ToolSchema]) -> CallTool | Reply | None:
    """Returns the next action of a partner; None if the tools are not those of one, or there is no transcript."""
    lines = transcript_lines(turn.text)
    if FINISH_EDITS in tools and lines:
        return _maintain(lines, turn, block, tools)
    if tools.keys() & {STORE, RETHINK, FINISH_RETHINKING} and lines:
        return _maintain_by_voice(lines, turn, block or "", tools)
    return None


def _maintain(
    lines: tuple[TranscriptLine, ...], turn: Turn, block: str | None, tools: Mapping[str, ToolSchema]
) -> CallTool | Reply:
    if any(call.tool == FINISH_EDITS for call in turn.calls):
        return Reply(f"{DISCLAIMER}\nThe memory is up to date.")
    edit = None if block is None else _next_edit(lines, turn, block, tools)
    if edit is not None:
        call = CallTool(edit.tool, edit.arguments, "The transcript states this about the user.")
        return complete(call, tools[edit.tool], turn, is_final=False)
    call = CallTool(FINISH_EDITS, {}, "The block human has everything that the transcript states.")
    return complete(call, tools[FINISH_EDITS], turn, is_final=True)


def _next_edit(
    lines: tuple[TranscriptLine, ...], turn: Turn, block: str, tools: Mapping[str, ToolSchema]
) -> MemoryEdit | None:
    """Returns the next edit of the block; None if it has all facts.

    A rewrite of the whole block is refused if another partner has changed it, and is then made again. So several
    partners write no fact twice.
    """
    if REWRITE in tools:
        rewrites = [call for call in turn.calls if call.tool == REWRITE]
        value = _with_facts(block, lines)
        is_done = value == block or len(rewrites) >= _REWRITES or any(not call.is_error for call in rewrites)
        return None if is_done else MemoryEdit(REWRITE, {"label": LABEL, "new_memory": value})
    edits = (_edit(fact, block, tools) for fact in _facts(lines))
    return next((edit for edit in edits if edit is not None and _may_call(edit, turn.calls)), None)


def _with_facts(block: str, lines: tuple[TranscriptLine, ...]) -> str:
    for fact in _facts(lines):
        block = with_fact(block, fact)
    return block


def _maintain_by_voice(
    lines: tuple[TranscriptLine, ...], turn: Turn, block: str, tools: Mapping[str, ToolSchema]
) -> CallTool | Reply:
    called = {call.tool for call in turn.calls}
    if STORE in tools and STORE not in called:
        call = CallTool(STORE, {"chunks": _chunks(lines)}, "The older lines leave the window.")
        return complete(call, tools[STORE], turn, is_final=False)
    if RETHINK in tools and RETHINK not in called:
        call = CallTool(
            RETHINK, {"new_memory": _with_facts(block, lines)}, "The transcript states this about the user."
        )
        return complete(call, tools[RETHINK], turn, is_final=False)
    if FINISH_RETHINKING in tools and FINISH_RETHINKING not in called:
        call = CallTool(FINISH_RETHINKING, {}, "The block human has everything that the transcript states.")
        return complete(call, tools[FINISH_RETHINKING], turn, is_final=True)
    return Reply(f"{DISCLAIMER}\nThe memory is up to date.")


def _facts(lines: tuple[TranscriptLine, ...]) -> Iterator[Fact | SetName]:
    """Yields what the user stated. Of facts that exclude one another, only the last is yielded."""
    latest: dict[str, Fact | SetName] = {}
    for line in lines:
        if line.role == "user":
            for fact in stated_facts(line.text, line.date):
                key = "name" if isinstance(fact, SetName) else fact.key or fact.line
                latest.pop(key, None)
                latest[key] = fact
    yield from latest.values()


def _edit(fact: Fact | SetName, block: str, tools: Mapping[str, ToolSchema]) -> MemoryEdit | None:
    if isinstance(fact, SetName):
        return None if known_name(block) == fact.name else name_edit(fact.name, block, tools)
    return fact_edit(fact, block, tools)


def _may_call(edit: MemoryEdit, calls: tuple[PastCall, ...]) -> bool:
    """Returns whether an edit was not made yet. One that failed may be repeated, as the block may have changed."""
    same = [call for call in calls if call.tool == edit.tool and edit.arguments.items() <= call.arguments.items()]
    return len(same) < _ATTEMPTS and all(call.is_error for call in same)


def _chunks(lines: tuple[TranscriptLine, ...]) -> list[dict[str, Any]]:
    """Returns one chunk with all older lines; none if there are none."""
    older = [line for line in lines if line.is_older and line.number is not None]
    if not older:
        return []
    words = next((line.text for line in older if line.role == "user"), older[0].text)
    context = f"A part of the conversation that began with: {' '.join(words.split())[:_CONTEXT_CHARACTERS]}"
    return [{"start_index": older[0].number, "end_index": older[-1].number, "context": context}]
