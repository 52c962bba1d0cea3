"""Lookups that several use cases share. Each reads within the caller's transaction and raises if nothing is found."""

from __future__ import annotations

from mnemesh_blocks.errors import AgentErased, BlockLabelNotFound, BlockNotFound, BlockRevisionNotFound
from mnemesh_blocks.model.blocks import Block
from mnemesh_blocks.model.core_memory import Holder
from mnemesh_blocks.model.revisions import BlockRevision
from mnemesh_blocks.store.base import BlockTransaction


def get_block(tx: BlockTransaction, block_id: str) -> Block:
    """Returns the block with this id.

    Raises:
        BlockNotFound: The organization has no such block.
    """
    block = tx.get_block(block_id)
    if block is None:
        raise BlockNotFound(block_id)
    return block


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
