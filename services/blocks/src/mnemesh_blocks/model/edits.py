"""The edits of a block's value. Each is a pure function from the old value to the new one.

A patch is a unified diff, applied by context. Line numbers in hunk headers are ignored, because models often get them
wrong.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_nul
from mnemesh_types.blocks import (
    AppendEdit,
    BlockOperation,
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
