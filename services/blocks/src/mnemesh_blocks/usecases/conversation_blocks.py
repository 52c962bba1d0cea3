"""The use cases of blocks that only one conversation of an agent shows."""

from __future__ import annotations

from collections.abc import Sequence

from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, require_id
from mnemesh_kit.principal import Principal

from mnemesh_blocks.errors import BlockLabelNotFound, ConversationNotFound
from mnemesh_blocks.model.authors import OwnerAuthor
from mnemesh_blocks.model.blocks import Block, copy_block, require_valid
from mnemesh_blocks.model.core_memory import require_labels
from mnemesh_blocks.store.base import BlockStore, BlockTransaction
from mnemesh_blocks.usecases import changes, lookups


class ConversationBlockService:
    """Isolates and releases the blocks of conversations."""

    def __init__(self, store: BlockStore, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def isolate_blocks(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str,
        labels: Sequence[str],
        source_conversation_id: str | None,
        key: RequestKey | None,
        *,
        create_missing: bool = False,
    ) -> Sequence[Block]:
        """Copies the blocks under `labels` for one conversation; keeps the copies that the conversation has already.

        Args:
            caller: The owner of the copies.
            agent_id: The agent.
            conversation_id: The conversation that receives the copies.
            labels: The labels of the blocks to copy.
            source_conversation_id: A conversation of the agent whose blocks are copied where it has any.
            key: The idempotency key of the request.
            create_missing: Whether a label under which the agent holds no block gets an empty one.

        Returns:
            All blocks of the conversation.

        Raises:
            BlockLabelNotFound: The agent holds no such block.
            ConversationNotFound: The conversation belongs to another agent.
            AgentErased: The agent was erased, or the conversation's blocks were released.
        """
        require_id(agent_id, "agent", "agent_id")
        require_id(conversation_id, "conv", "conversation_id")
        if source_conversation_id is not None:
            require_id(source_conversation_id, "conv", "source_conversation_id")
        require_labels(labels)
        author, now = OwnerAuthor(caller.subject_id), self._clock.now()

        def isolate(tx: BlockTransaction) -> Sequence[Block]:
            for holder_id in (agent_id, conversation_id):
                lookups.require_not_erased(tx, holder_id)
            if not tx.register_conversation(conversation_id, agent_id):
                raise ConversationNotFound(conversation_id)
            for label in dict.fromkeys(labels):
                if tx.get_held_block(conversation_id, label) is None:
                    source = lookups.find_held_block(tx, agent_id, label, source_conversation_id)
                    if source is None and not create_missing:
                        raise BlockLabelNotFound(label, tx.list_labels(agent_id))
                    source = source or require_valid(Block(id="", label=label, created_at=now, updated_at=now))
                    copy = copy_block(source, self._ids.new("block"), author.subject_id, now)
                    changes.insert_block(tx, copy, author)
                    tx.attach(conversation_id, copy)
            return tx.get_core_memories([conversation_id])[0].blocks

        return await self._store.write_once(
            caller.organization_id,
            key,
            isolate,
            result_ids=lambda blocks: [block.id for block in blocks],
            replay=lambda tx, ids: [lookups.get_block(tx, block_id) for block_id in ids],
        )

    async def release_blocks(
        self, caller: Principal, agent_id: str, conversation_id: str, key: RequestKey | None
    ) -> int:
        """Deletes the blocks of a conversation and refuses later writes to them; returns the number of blocks."""
        require_id(agent_id, "agent", "agent_id")
        require_id(conversation_id, "conv", "conversation_id")

        def release(tx: BlockTransaction) -> int:
            if not tx.is_conversation_of(conversation_id, agent_id):
                return 0
            return changes.erase_conversation(tx, conversation_id)

        return await self._store.write_once(
            caller.organization_id,
            key,
            release,
            result_ids=lambda count: [str(count)],
            replay=lambda _tx, ids: int(ids[0]),
        )
