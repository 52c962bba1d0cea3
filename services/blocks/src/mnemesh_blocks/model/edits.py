"""The edits of a block's value. Each is a pure function from the old value to the new one.

A patch is a unified diff, applied by context. Line numbers in hunk headers are ignored, because models often get them
wrong.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_no_nul, require_text
from mnemesh_types.blocks import (
    AppendEdit,
    Block,
    BlockOperation,
    CoreMemory,
    InsertLineEdit,
    PatchEdit,
    ReplaceAllEdit,
    ReplaceUniqueEdit,
    RethinkEdit,
)

from mnemesh_blocks.errors import (
    BlockLineNumberPrefix,
    BlockLineOutOfRange,
    BlockPatchFailed,
    BlockTextAmbiguous,
    BlockTextNotFound,
)

MAX_AGENTS: Final = 1000
"""The maximum number of agents in one batch."""
MAX_LABELS: Final = 1000
"""The maximum number of labels in one request."""
MAX_LINKED: Final = 100
"""The maximum number of agents whose blocks are kept equal."""
MAX_LINK_ID: Final = 200


@dataclass(frozen=True, slots=True)
class Holder:
    """The state of a holder. A holder that never held a block has the defaults."""

    is_erased: bool = False
    link_id: str | None = None
    """The set of agents with which the holder shares its blocks."""


def with_conversation(memory: CoreMemory, own: CoreMemory) -> CoreMemory:
    """Returns the core memory that a conversation shows.

    Args:
        memory: The agent's.
        own: The blocks of the conversation. Each replaces the agent's block with the same label, at its position; the
            others follow at the end.
    """
    by_label = {block.label: block for block in own.blocks}
    blocks = [by_label.pop(block.label, block) for block in memory.blocks]
    times = [time for time in (memory.updated_at, own.updated_at) if time is not None]
    return CoreMemory(
        memory.agent_id,
        memory.revision + own.revision,
        (*blocks, *by_label.values()),
        max(times) if times else None,
    )


@dataclass(frozen=True, slots=True)
class EditedBlock:
    """A block after an edit, and the revision of the core memory that the edit went through."""

    block: Block
    core_memory_revision: int


def require_labels(labels: Sequence[str]) -> Sequence[str]:
    """Returns `labels` if a request may name them.

    Raises:
        InvalidArgument: There is none, there are too many, or one contains a NUL character.
    """
    if not labels:
        raise InvalidArgument("labels must name at least one label.", field="labels")
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"labels must have at most {MAX_LABELS} entries.", field="labels")
    for label in labels:
        require_no_nul(label, "labels")
    return labels


def require_agents(agent_ids: Sequence[str], field: str = "agent_ids") -> Sequence[str]:
    """Returns `agent_ids` if one batch may ask for that many.

    Raises:
        InvalidArgument: There are too many.
    """
    if len(agent_ids) > MAX_AGENTS:
        raise InvalidArgument(f"{field} must have at most {MAX_AGENTS} entries.", field=field)
    return agent_ids


def require_link_id(link_id: str) -> str:
    """Returns `link_id` if it can identify a link.

    Raises:
        InvalidArgument: It is empty, too long, or contains a NUL character.
    """
    return require_text(link_id, "link_id", min_chars=1, max_chars=MAX_LINK_ID)


def require_link(agent_ids: Sequence[str], source_agent_id: str) -> Sequence[str]:
    """Returns `agent_ids` if these agents can share their blocks.

    Raises:
        InvalidArgument: An id is malformed or repeated, there are fewer than two or too many, or the source is not one
            of them.
    """
    for agent_id in agent_ids:
        require_id(agent_id, "agent", "agent_ids")
    if len(set(agent_ids)) != len(agent_ids) or not 2 <= len(agent_ids) <= MAX_LINKED:
        raise InvalidArgument(f"agent_ids must name 2 to {MAX_LINKED} agents, each once.", field="agent_ids")
    if source_agent_id not in agent_ids:
        raise InvalidArgument("source_agent_id must be one of agent_ids.", field="source_agent_id")
    return agent_ids


_QUOTED_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class _Hunk:
    before: tuple[str, ...]
    after: tuple[str, ...]


def apply_patch(value: str, patch: str, label: str) -> str:
    """Returns `value` with all hunks applied, one after the other.

    The context and the removed lines of a hunk must occur in the value exactly once. A hunk that only adds lines is
    appended.

    Args:
        value: The current value of the block.
        patch: The unified diff, with or without file headers.
        label: The label of the block, for error metadata.

    Raises:
        BlockPatchFailed: There is no hunk, a line is not part of a diff, or a hunk matches no position or several.
    """
    hunks = _parse(patch, label)
    if not hunks:
        raise BlockPatchFailed("The patch contains no hunks.", label=label)
    lines = value.split("\n") if value else []
    for hunk in hunks:
        index = _find_index(lines, hunk, label)
        lines[index : index + len(hunk.before)] = hunk.after
    return "\n".join(lines)


def _parse(patch: str, label: str) -> list[_Hunk]:
    hunks: list[_Hunk] = []
    before: list[str] = []
    after: list[str] = []
    inside = False

    def close() -> None:
        if before != after:
            hunks.append(_Hunk(tuple(before), tuple(after)))
        before.clear()
        after.clear()

    for line in patch.removesuffix("\n").split("\n"):
        # File headers precede the first hunk. Within a hunk, "--- x" removes the line "-- x".
        if line.startswith(("*** ", "\\ ")) or (not inside and line.startswith(("--- ", "+++ ", "diff ", "index "))):
            continue
        if line.startswith("@@"):
            close()
            inside = True
            continue
        mark, text = line[:1], line[1:]
        if mark not in ("", " ", "+", "-"):
            raise BlockPatchFailed(f"The patch has a line that starts with none of ' ', '+', '-': {line}", label=label)
        if not inside and not line:
            continue
        inside = True
        if mark != "+":
            before.append(text)
        if mark != "-":
            after.append(text)
    close()
    return hunks


def _find_index(lines: list[str], hunk: _Hunk, label: str) -> int:
    if not hunk.before:
        return len(lines)
    size = len(hunk.before)
    found = [i for i in range(len(lines) - size + 1) if tuple(lines[i : i + size]) == hunk.before]
    if len(found) == 1:
        return found[0]
    quoted = "\n".join(hunk.before[:_QUOTED_LINES])
    problem = "matched multiple places" if found else "expected hunk context not found"
    raise BlockPatchFailed(f"The patch was not applied, {problem}:\n{quoted}", label=label)


# Agents see blocks with "12→ " before each line. Without this check, an agent that copies a line stores its number.
_LINE_NUMBER: Final = re.compile(r"^[ \t]*\d+→", re.MULTILINE)


class Edit(Protocol):
    """One edit of a block's value."""

    operation: ClassVar[BlockOperation]

    @property
    def base_revision(self) -> int | None:
        """The revision that the author saw, or None if the edit does not depend on it."""
        ...

    def apply(self, value: str, label: str) -> str:
        """Returns the value after the edit.

        Args:
            value: The current value.
            label: The label of the block, for error texts.

        Raises:
            MnemeshError: The edit does not apply to this value; `errors.py` lists the reasons.
        """
        ...


class Append(AppendEdit):
    """Adds text on a new line at the end. In an empty block the text is the first line."""

    __slots__ = ()
    operation: ClassVar = BlockOperation.APPEND
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:  # noqa: ARG002
        """Returns `value` followed by a newline and the text."""
        text = _require_storable(self.text, "content", "append.text")
        return f"{value}\n{text}" if value else text


class ReplaceAll(ReplaceAllEdit):
    """Replaces every occurrence of a text. There must be at least one."""

    __slots__ = ()
    operation: ClassVar = BlockOperation.REPLACE_ALL
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:
        """Returns `value` with every occurrence replaced."""
        old = _require_not_empty(
            _require_storable(self.old_text, "old_content", "replace_all.old_text"), "replace_all.old_text"
        )
        new = _require_storable(self.new_text, "new_content", "replace_all.new_text")
        if old not in value:
            raise BlockTextNotFound(f"Old content '{old}' not found in memory block '{label}'", label=label)
        return value.replace(old, new)


class ReplaceUnique(ReplaceUniqueEdit):
    """Replaces the only occurrence of a text."""

    __slots__ = ()
    operation: ClassVar = BlockOperation.REPLACE_UNIQUE
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:
        """Returns `value` with the one occurrence replaced."""
        old = _require_not_empty(
            _require_storable(self.old_text, "old_str", "replace_unique.old_text"), "replace_unique.old_text"
        )
        new = _require_storable(self.new_text, "new_str", "replace_unique.new_text")
        lines = _lines_of(old, value)
        if not lines:
            raise BlockTextNotFound(
                f"No replacement was performed, old_str `{old}` did not appear verbatim in memory block "
                f"with label `{label}`.",
                label=label,
            )
        if len(lines) > 1:
            raise BlockTextAmbiguous(label, old, sorted(set(lines)))
        return value.replace(old, new)


class InsertLine(InsertLineEdit):
    """Inserts text after a line. Line 0 inserts at the beginning, line -1 at the end."""

    __slots__ = ()
    operation: ClassVar = BlockOperation.INSERT_LINE

    def apply(self, value: str, label: str) -> str:  # noqa: ARG002
        """Returns `value` with the inserted lines."""
        text = _require_storable(self.text, "insert_text", "insert_line.text")
        lines = value.split("\n") if value else []
        line = len(lines) if self.line == -1 else self.line
        if not 0 <= line <= len(lines):
            raise BlockLineOutOfRange(self.line, len(lines))
        return "\n".join((*lines[:line], text, *lines[line:]))


class Rethink(RethinkEdit):
    """Replaces the whole value."""

    __slots__ = ()
    operation: ClassVar = BlockOperation.RETHINK

    def apply(self, value: str, label: str) -> str:  # noqa: ARG002
        return _require_storable(self.value, "new_memory", "rethink.value")


class Patch(PatchEdit):
    """Applies the hunks of a unified diff by their context."""

    __slots__ = ()
    operation: ClassVar = BlockOperation.PATCH
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:
        """Returns `value` with every hunk applied."""
        patch = require_no_nul(self.patch, "patch.patch")
        if any(_LINE_NUMBER.match(line[1:]) or _LINE_NUMBER.match(line) for line in patch.split("\n")):
            raise BlockLineNumberPrefix("Patch", "patch.patch")
        return apply_patch(value, patch, label)


def _require_storable(text: str, name: str, field: str) -> str:
    """Returns `text` if it can be stored. `name` is its name in the agent's tool, `field` its name in the request."""
    require_no_nul(text, field)
    if _LINE_NUMBER.search(text):
        raise BlockLineNumberPrefix(name, field)
    return text


def _require_not_empty(text: str, field: str) -> str:
    if not text:
        raise InvalidArgument(f"{field} must not be empty.", field=field)
    return text


def _lines_of(text: str, value: str) -> list[int]:
    """Returns the 1-based line at which each occurrence of `text` begins."""
    lines: list[int] = []
    position = value.find(text)
    while position >= 0:
        lines.append(value.count("\n", 0, position) + 1)
        position = value.find(text, position + len(text))
    return lines
