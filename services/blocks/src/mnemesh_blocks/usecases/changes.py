"""Lookups and changes that several use cases share. Each runs within the caller's transaction."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from mnemesh_types.blocks import Author, Block, BlockOperation, BlockRevision

from mnemesh_blocks.errors import (
    AgentErased,
    BlockLabelNotFound,
    BlockLabelTaken,
    BlockNotFound,
    BlockNotHeld,
    BlockRevisionNotFound,
)
from mnemesh_blocks.model.blocks import author_id, next_revision, revision_of
from mnemesh_blocks.model.edits import Holder
from mnemesh_blocks.store.blocks import BlockTransaction, Recorded


def get_block(tx: BlockTransaction, block_id: str) -> Block:
    """Returns the block with this id.

    Raises:
        BlockNotFound: The organization has no such block.
    """
    block = tx.get_block(block_id)
    if block is None:
        raise BlockNotFound(block_id)
    return block


BLOCK: Final[Recorded[Block]] = Recorded(lambda block: [block.id], lambda tx, ids: get_block(tx, ids[0]))
NUMBER: Final[Recorded[int]] = Recorded(lambda number: [str(number)], lambda _tx, ids: int(ids[0]))
NOTHING: Final[Recorded[None]] = Recorded(lambda _: [], lambda _tx, _ids: None)


def get_held_block(tx: BlockTransaction, agent_id: str, label: str, conversation_id: str | None = None) -> Block:
    """Returns the conversation's block with this label, or else the agent's.

    Raises:
        BlockLabelNotFound: Neither holds such a block.
        AgentErased: Neither holds such a block, because the agent was erased.
    """
    block = find_held_block(tx, agent_id, label, conversation_id)
    if block is None:
        require_not_erased(tx, agent_id)
        raise BlockLabelNotFound(label, tx.list_labels(agent_id))
    return block


def find_held_block(
    tx: BlockTransaction, agent_id: str, label: str, conversation_id: str | None = None
) -> Block | None:
    """Returns the conversation's block with this label, or else the agent's, or None."""
    if conversation_id is not None and tx.is_conversation_of(conversation_id, agent_id):
        own = tx.get_held_block(conversation_id, label)
        if own is not None:
            return own
    return tx.get_held_block(agent_id, label)


def get_revision(tx: BlockTransaction, block: Block, revision: int) -> BlockRevision:
    """Returns one revision of a block.

    Raises:
        BlockRevisionNotFound: The block has no such revision.
    """
    found = tx.get_revision(block.id, revision)
    if found is None:
        raise BlockRevisionNotFound(block.id, str(revision))
    return found


def require_not_erased(tx: BlockTransaction, agent_id: str) -> Holder:
    """Returns the state of a holder.

    Raises:
        AgentErased: The holder has a tombstone.
    """
    holder = tx.get_holder(agent_id)
    if holder.is_erased:
        raise AgentErased(agent_id)
    return holder


def insert_block(tx: BlockTransaction, block: Block, author: Author) -> None:
    """Stores a new block with its first revision."""
    tx.insert_block(block)
    tx.insert_revision(revision_of(block, BlockOperation.CREATE, author))


def update_block(
    tx: BlockTransaction, block: Block, operation: BlockOperation, author: Author, now: datetime, **changes: Any
) -> Block:
    """Stores and returns the next revision of `block`.

    Args:
        tx: The transaction that `block` was read in.
        block: The current block.
        operation: The kind of the change.
        author: The author of the change.
        now: The time of the change.
        changes: The arguments of `next_revision`. A new `value` becomes the content revision, unless `content_revision`
            names an older one.

    Raises:
        BlockLabelTaken: A holder of the block holds another block under the new label.
    """
    writes_value = "value" in changes and "content_revision" not in changes
    if writes_value:
        changes["content_revision"] = block.revision + 1
    after = next_revision(block, now, author_id(author), **changes)
    if after.label != block.label and (agent_id := tx.find_label_conflict(block.id, after.label)) is not None:
        raise BlockLabelTaken(after.label, agent_id)
    # The block is written before its revision. Concurrent writers then conflict at the row, which the store retries,
    # and not at the key of the revision, which would be an error.
    tx.update_block(after, block)
    tx.insert_revision(revision_of(after, operation, author, block.content_revision if writes_value else None))
    return after


def attach_block(tx: BlockTransaction, agent_id: str, block: Block) -> None:
    """Attaches a block to an agent and to those that it is linked with, unless they hold it already.

    Raises:
        AgentErased: The agent was erased.
        BlockLabelTaken: One of the agents holds another block under the same label.
    """
    attach_to(tx, linked_agents(tx, agent_id), block)


def linked_agents(tx: BlockTransaction, agent_id: str) -> Sequence[str]:
    """Returns the ids of an agent and of those that it is linked with. Raises AgentErased."""
    return _linked_agents(tx, agent_id, require_not_erased(tx, agent_id))


def attach_to(tx: BlockTransaction, agent_ids: Sequence[str], block: Block) -> None:
    """Attaches a block to linked agents, unless they hold it already. Raises BlockLabelTaken."""
    for holder_id in agent_ids:
        other = tx.get_held_block(holder_id, block.label)
        if other is None:
            tx.attach(holder_id, block)
        elif other.id != block.id:
            raise BlockLabelTaken(block.label, holder_id)


def detach_block(tx: BlockTransaction, agent_id: str, block_id: str) -> None:
    """Detaches a block from an agent and from those that it is linked with.

    Raises:
        BlockNotHeld: The agent does not hold the block.
    """
    if not tx.detach(agent_id, block_id):
        raise BlockNotHeld(agent_id, block_id)
    for holder_id in _linked_agents(tx, agent_id, tx.get_holder(agent_id)):
        if holder_id != agent_id:
            tx.detach(holder_id, block_id)


def _linked_agents(tx: BlockTransaction, agent_id: str, holder: Holder) -> Sequence[str]:
    return (agent_id,) if holder.link_id is None else tx.list_linked_agents(holder.link_id)


def erase_agent(
    tx: BlockTransaction, agent_id: str, together_with: Sequence[str], *, with_unshared_blocks: bool
) -> tuple[int, int]:
    """Detaches all blocks of an agent, deletes those that are deleted with it, and stores a tombstone for the agent.

    Args:
        tx: The transaction.
        agent_id: The agent.
        together_with: Other agents whose own blocks are deleted like the agent's.
        with_unshared_blocks: Also deletes the blocks that were not created for the agent and that have no other holder.

    Returns:
        The number of blocks that were detached, and the number of those that were deleted.
    """
    block_ids = tx.detach_all(agent_id)
    deleted = tx.delete_unheld_blocks(block_ids, None if with_unshared_blocks else (agent_id, *together_with))
    tx.mark_erased(agent_id)
    return len(block_ids), deleted


def erase_conversation(tx: BlockTransaction, conversation_id: str) -> int:
    """Deletes the blocks of a conversation, stores a tombstone for it, and returns the number of blocks."""
    deleted = tx.delete_unheld_blocks(tx.detach_all(conversation_id), None)
    tx.mark_erased(conversation_id)
    return deleted
