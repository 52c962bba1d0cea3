"""What must hold before a use case may go on, each read within its transaction."""

from __future__ import annotations

from mnemesh_blocks.errors import (
    AgentErased,
    BlockLabelNotFound,
    BlockLabelTaken,
    BlockNotFound,
    BlockReadOnly,
    BlockRevisionMismatch,
)
from mnemesh_blocks.model.blocks import AgentAuthor, Author, Block
from mnemesh_blocks.store.base import BlockTransaction


def required(tx: BlockTransaction, block_id: str) -> Block:
    """The organization's block of that id. BlockNotFound where there is none."""
    block = tx.block(block_id)
    if block is None:
        raise BlockNotFound(block_id)
    return block


def held(tx: BlockTransaction, agent_id: str, label: str, conversation_id: str | None = None) -> Block:
    """What an agent holds under a label, or its conversation for itself. BlockLabelNotFound where neither does."""
    if conversation_id is not None and tx.is_conversation_of(conversation_id, agent_id):
        own = tx.held_block(conversation_id, label)
        if own is not None:
            return own
    block = tx.held_block(agent_id, label)
    if block is None:
        require_alive(tx, agent_id)
        raise BlockLabelNotFound(label, tx.labels(agent_id))
    return block


def writable(block: Block, author: Author) -> Block:
    """The block, which the author may edit. BlockReadOnly where an agent may not."""
    if block.read_only and isinstance(author, AgentAuthor):
        raise BlockReadOnly(block.label)
    return block


def at_revision(block: Block, base_revision: int | None) -> Block:
    """The block, which is where its editor saw it. BlockRevisionMismatch where it has moved."""
    if base_revision is not None and base_revision != block.revision:
        raise BlockRevisionMismatch(block.label, block.revision, block.value)
    return block


def require_alive(tx: BlockTransaction, agent_id: str) -> None:
    """AgentErased where the agent left a tombstone."""
    if tx.is_erased(agent_id):
        raise AgentErased(agent_id)


def attach(tx: BlockTransaction, agent_id: str, block: Block) -> None:
    """Gives a block to an agent that lives and holds no other so labelled. BlockLabelTaken where it does."""
    require_alive(tx, agent_id)
    other = tx.held_block(agent_id, block.label)
    if other is None:
        tx.attach(agent_id, block)
    elif other.id != block.id:
        raise BlockLabelTaken(block.label, agent_id)
