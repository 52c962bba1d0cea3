"""The history of a block, and the targets that a block can be reverted to.

Each change of a value points to the revision whose value it replaced, its parent. Undo follows that pointer; redo
follows the newest revision that points back. An edit after an undo starts a new branch, and redo no longer reaches the
old one, as in a text editor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from mnemesh_blocks.model.authors import Author
from mnemesh_blocks.model.blocks import Block


class Operation(StrEnum):
    """The kind of a change."""

    CREATE = "create"
    UPDATE = "update"
    APPEND = "append"
    REPLACE_ALL = "replace_all"
    REPLACE_UNIQUE = "replace_unique"
    INSERT_LINE = "insert_line"
    RETHINK = "rethink"
    PATCH = "patch"
    REVERT = "revert"
    UNDO = "undo"
    REDO = "redo"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRevision:
    """The content of a block after one change, with the author of the change."""

    block_id: str
    revision: int
    operation: Operation
    label: str
    value: str
    description: str | None
    limit: int
    read_only: bool
    author: Author
    created_at: datetime
    parent: int | None = None
    """The revision whose value this one replaced. None if the value did not change, and for undo and redo."""
    previous_value: str | None = None
    """The value one revision earlier, if the list was asked to include it."""


@dataclass(frozen=True, slots=True)
class ToRevision:
    """A revision by its number. Reverting to it is a change that can itself be undone."""

    revision: int
    operation: ClassVar = Operation.REVERT


@dataclass(frozen=True, slots=True)
class Undo:
    """The value before the one that the block shows."""

    operation: ClassVar = Operation.UNDO


@dataclass(frozen=True, slots=True)
class Redo:
    """The value that the last undo replaced."""

    operation: ClassVar = Operation.REDO


RevertTarget = ToRevision | Undo | Redo


def revision_of(block: Block, operation: Operation, author: Author, parent: int | None = None) -> BlockRevision:
    """Returns the history entry of the change that led to `block`."""
    return BlockRevision(
        block_id=block.id,
        revision=block.revision,
        operation=operation,
        label=block.label,
        value=block.value,
        description=block.description,
        limit=block.limit,
        read_only=block.read_only,
        author=author,
        created_at=block.updated_at,
        parent=parent,
    )


def block_at_revision(block: Block, revision: BlockRevision) -> Block:
    """Returns `block` with the recorded fields as they were at `revision`, and the other fields as they are now."""
    return replace(
        block,
        revision=revision.revision,
        label=revision.label,
        value=revision.value,
        description=revision.description,
        limit=revision.limit,
        read_only=revision.read_only,
        updated_at=revision.created_at,
    )
