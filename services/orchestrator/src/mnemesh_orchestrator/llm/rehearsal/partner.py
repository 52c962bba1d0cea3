"""The rehearsal as a partner that maintains the memory of another agent, in writing or by voice."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mnemesh_orchestrator.llm.rehearsal.actions import DISCLAIMER, CallTool, Reply, complete
from mnemesh_orchestrator.llm.rehearsal.core_memory import (
    LABEL,
    MemoryEdit,
    fact_edit,
    known_name,
    name_edit,
    with_fact,
)
from mnemesh_orchestrator.llm.rehearsal.facts import Fact, stated_facts
from mnemesh_orchestrator.llm.rehearsal.sentences import SetName
from mnemesh_orchestrator.llm.rehearsal.transcript import TranscriptLine, transcript_lines
from mnemesh_orchestrator.llm.rehearsal.turn import PastCall, Turn
from mnemesh_orchestrator.model.models import ToolSchema

FINISH_EDITS: Final = "memory_finish_edits"
REWRITE: Final = "memory_rethink"
STORE: Final = "store_memories"
RETHINK: Final = "rethink_user_memory"
FINISH_RETHINKING: Final = "finish_rethinking_memory"
_ATTEMPTS: Final = 2
_REWRITES: Final = 5
_CONTEXT_CHARACTERS: Final = 120


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
