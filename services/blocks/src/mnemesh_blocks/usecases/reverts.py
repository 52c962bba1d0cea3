"""Going back and forth in a block's history.

Every change of the value points to the revision whose value it replaced. Undo follows that pointer, redo the newest one
that points back, so an edit after an undo starts a new future and the old one is out of reach, as in an editor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from mnemesh_blocks.errors import BlockNoHistory, BlockRevisionNotFound
from mnemesh_blocks.model.blocks import Block, BlockRevision, Operation
from mnemesh_blocks.store.base import BlockTransaction


class RevertTarget(Protocol):
    """Where a revert goes to."""

    operation: ClassVar[Operation]
    is_change: ClassVar[bool]
    """Whether it adds to the history, rather than moving within it."""

    def find(self, tx: BlockTransaction, block: Block) -> BlockRevision:
        """The revision whose value is to be written."""
        ...


@dataclass(frozen=True, slots=True)
class ToRevision:
    """A revision by its number; this can itself be undone."""

    revision: int
    operation: ClassVar = Operation.REVERT
    is_change: ClassVar = True

    def find(self, tx: BlockTransaction, block: Block) -> BlockRevision:
        """That revision."""
        return _revision(tx, block, self.revision)


@dataclass(frozen=True, slots=True)
class Undo:
    """The value before the one that the block shows."""

    operation: ClassVar = Operation.UNDO
    is_change: ClassVar = False

    def find(self, tx: BlockTransaction, block: Block) -> BlockRevision:
        """The revision one step back."""
        parent = _revision(tx, block, block.content_revision).parent
        if parent is None:
            raise BlockNoHistory(block.id, "undo")
        return _revision(tx, block, parent)


@dataclass(frozen=True, slots=True)
class Redo:
    """The value that the last undo took back."""

    operation: ClassVar = Operation.REDO
    is_change: ClassVar = False

    def find(self, tx: BlockTransaction, block: Block) -> BlockRevision:
        """The revision one step forth."""
        child = tx.newest_child(block.id, block.content_revision)
        if child is None:
            raise BlockNoHistory(block.id, "redo")
        return child


def content_of(revision: BlockRevision, block: Block) -> Block:
    """The block with what its history keeps as it was at `revision`; the rest as it is now."""
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


def _revision(tx: BlockTransaction, block: Block, number: int) -> BlockRevision:
    found = tx.revision(block.id, number)
    if found is None:
        raise BlockRevisionNotFound(block.id, str(number))
    return found
