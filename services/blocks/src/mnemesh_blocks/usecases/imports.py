"""The import of blocks that were exported elsewhere, with their ids and their history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import require_id
from mnemesh_kit.principal import Principal

from mnemesh_blocks.errors import BlockNotFound, ConversationNotFound
from mnemesh_blocks.model.blocks import Block, require_valid
from mnemesh_blocks.model.revisions import BlockRevision, Operation
from mnemesh_blocks.store.base import BlockStore, BlockTransaction
from mnemesh_blocks.usecases import changes, lookups

MAX_ITEMS: Final = 1_000
_WITHOUT_PARENT: Final = (Operation.CREATE, Operation.UNDO, Operation.REDO)


class BlockImportService:
    """Restores blocks and their revisions."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    async def import_blocks(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str | None,
        blocks: Sequence[Block],
        revisions: Sequence[BlockRevision],
        key: RequestKey | None,
    ) -> Sequence[str]:
        """Stores the blocks and revisions that do not exist, and attaches the blocks.

        Args:
            caller: The caller.
            agent_id: The agent that holds the blocks.
            conversation_id: The conversation of the agent that holds them instead; None for the agent.
            blocks: The blocks, in the order of attachment.
            revisions: Revisions of blocks, in ascending order for each block.
            key: The idempotency key of the request.

        Returns:
            The ids of the blocks that existed.

        Raises:
            InvalidArgument: A block or a revision breaks a rule. Metadata: field, such as `blocks[3].label`.
            BlockLabelTaken: The agent holds another block under the label of one.
            BlockNotFound: A revision is that of no block.
            AgentErased: The agent was erased.
        """
        require_id(agent_id, "agent", "agent_id")
        if conversation_id is not None:
            require_id(conversation_id, "conv", "conversation_id")
        for name, items in (("blocks", blocks), ("revisions", revisions)):
            if len(items) > MAX_ITEMS:
                raise InvalidArgument(f"{name} must have at most {MAX_ITEMS:,} items.", field=name)
        for index, block in enumerate(blocks):
            _require_block(block, f"blocks[{index}]")
        for index, revision in enumerate(revisions):
            if revision.revision < 1:
                raise InvalidArgument("A revision is at least 1.", field=f"revisions[{index}].revision")

        def restore(tx: BlockTransaction) -> Sequence[str]:
            existing = [block.id for block in blocks if not _insert(tx, block)]
            _attach(tx, agent_id, conversation_id, blocks)
            for revision in revisions:
                _insert_revision(tx, revision)
            return existing

        return await self._store.write_once(
            caller.organization_id, key, restore, result_ids=lambda ids: ids, replay=lambda _tx, ids: ids
        )


def _require_block(block: Block, field: str) -> None:
    require_id(block.id, "block", f"{field}.id")
    try:
        require_valid(block)
    except InvalidArgument as error:
        name = (error.field or "block").removeprefix("block.")
        raise InvalidArgument(error.message, field=f"{field}.{name}") from error
    if block.revision < 1:
        raise InvalidArgument(f"{field}.revision must be at least 1.", field=f"{field}.revision")


def _insert(tx: BlockTransaction, block: Block) -> bool:
    """Inserts a block unless it exists. Returns whether it is new."""
    if tx.get_block(block.id) is not None:
        return False
    tx.insert_block(block)
    return True


def _attach(tx: BlockTransaction, agent_id: str, conversation_id: str | None, blocks: Sequence[Block]) -> None:
    lookups.require_not_erased(tx, agent_id)
    if conversation_id is None:
        for block in blocks:
            changes.attach_block(tx, agent_id, lookups.get_block(tx, block.id))
        return
    if not tx.register_conversation(conversation_id, agent_id):
        raise ConversationNotFound(conversation_id)
    for block in blocks:
        if tx.get_held_block(conversation_id, block.label) is None:
            tx.attach(conversation_id, lookups.get_block(tx, block.id))


def _insert_revision(tx: BlockTransaction, revision: BlockRevision) -> None:
    block = tx.get_block(revision.block_id)
    if block is None:
        raise BlockNotFound(revision.block_id)
    if revision.revision > block.revision or tx.get_revision(block.id, revision.revision) is not None:
        return
    if revision.parent is None and revision.operation not in _WITHOUT_PARENT:
        before = tx.get_revision(block.id, revision.revision - 1)
        if before is not None and before.value != revision.value:
            revision = replace(revision, parent=before.revision)
    tx.insert_revision(revision)
