"""The edits that an agent can make to a block's value: each a pure function from the old value to the new one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from mnemesh_kit.errors import InvalidArgument

from mnemesh_blocks.errors import (
    BlockLineNumberPrefix,
    BlockLineOutOfRange,
    BlockTextAmbiguous,
    BlockTextNotFound,
)
from mnemesh_blocks.model.blocks import Operation
from mnemesh_blocks.model.patches import apply_patch
from mnemesh_blocks.model.validation import without_nul

# Blocks are shown to agents with "12→ " before each line; an agent that copies the display would store the numbers.
_LINE_NUMBER: Final = re.compile(r"^[ \t]*\d+→", re.MULTILINE)


class Edit(Protocol):
    """One edit of a block's value."""

    operation: ClassVar[Operation]

    @property
    def base_revision(self) -> int | None:
        """The block revision that the author saw, where the edit depends on it."""
        ...

    def apply(self, value: str, label: str) -> str:
        """The value after the edit; raises what the room's errors name, and then nothing has changed."""
        ...


@dataclass(frozen=True, slots=True)
class Append:
    """Adds text on a new line at the end; an empty block gets the text alone."""

    text: str
    operation: ClassVar = Operation.APPEND
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:  # noqa: ARG002
        """The value with the text below it."""
        text = _clean(self.text, "content", "append.text")
        return f"{value}\n{text}" if value else text


@dataclass(frozen=True, slots=True)
class ReplaceAll:
    """Replaces every occurrence, of which there must be one at least."""

    old: str
    new: str
    operation: ClassVar = Operation.REPLACE_ALL
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:
        """The value with the new text wherever the old one was."""
        old = _required(_clean(self.old, "old_content", "replace_all.old_text"), "replace_all.old_text")
        new = _clean(self.new, "new_content", "replace_all.new_text")
        if old not in value:
            raise BlockTextNotFound(f"Old content '{old}' not found in memory block '{label}'", label=label)
        return value.replace(old, new)


@dataclass(frozen=True, slots=True)
class ReplaceUnique:
    """Replaces the only occurrence."""

    old: str
    new: str
    operation: ClassVar = Operation.REPLACE_UNIQUE
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:
        """The value with the new text in place of the old."""
        old = _required(_clean(self.old, "old_str", "replace_unique.old_text"), "replace_unique.old_text")
        new = _clean(self.new, "new_str", "replace_unique.new_text")
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


@dataclass(frozen=True, slots=True)
class InsertLine:
    """Inserts lines behind the given one: 0 is the beginning, -1 the end."""

    line: int
    text: str
    base_revision: int | None = None
    operation: ClassVar = Operation.INSERT_LINE

    def apply(self, value: str, label: str) -> str:  # noqa: ARG002
        """The value with the new lines in it."""
        text = _clean(self.text, "insert_text", "insert_line.text")
        lines = value.split("\n") if value else []
        line = len(lines) if self.line == -1 else self.line
        if not 0 <= line <= len(lines):
            raise BlockLineOutOfRange(self.line, len(lines))
        return "\n".join((*lines[:line], text, *lines[line:]))


@dataclass(frozen=True, slots=True)
class Rethink:
    """Writes the whole value anew."""

    value: str
    base_revision: int | None = None
    operation: ClassVar = Operation.RETHINK

    def apply(self, value: str, label: str) -> str:  # noqa: ARG002
        """The new value."""
        return _clean(self.value, "new_memory", "rethink.value")


@dataclass(frozen=True, slots=True)
class Patch:
    """Applies the hunks of a unified diff by their context."""

    patch: str
    operation: ClassVar = Operation.PATCH
    base_revision: ClassVar[int | None] = None

    def apply(self, value: str, label: str) -> str:
        """The value with every hunk applied."""
        patch = without_nul(self.patch, "patch.patch")
        if any(_LINE_NUMBER.match(line[1:]) or _LINE_NUMBER.match(line) for line in patch.split("\n")):
            raise BlockLineNumberPrefix("Patch", "patch.patch")
        return apply_patch(value, patch, label)


def _clean(text: str, name: str, field: str) -> str:
    """Returns `text`; `name` is what the agent's tool calls it, `field` what the request does."""
    without_nul(text, field)
    if _LINE_NUMBER.search(text):
        raise BlockLineNumberPrefix(name, field)
    return text


def _required(text: str, field: str) -> str:
    if not text:
        raise InvalidArgument("The text to replace must not be empty.", field=field)
    return text


def _lines_of(text: str, value: str) -> list[int]:
    """The 1-based line at which each occurrence begins."""
    lines: list[int] = []
    position = value.find(text)
    while position >= 0:
        lines.append(value.count("\n", 0, position) + 1)
        position = value.find(text, position + len(text))
    return lines
