"""The use cases of blocks: their life, their history, and their import with ids and history.

Each runs in one transaction, so it takes effect completely or not at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock
from mnemesh_types.blocks import Author, Block, BlockFilter, BlockOperation, BlockRevision, CoreMemory, OwnerAuthor

from mnemesh_blocks.errors import BlockNoHistory, BlockNotFound, BlockRevisionNotFound, ConversationNotFound
from mnemesh_blocks.model.blocks import (
    BlockOrder,
    Redo,
    RevertTarget,
    ToRevision,
    Undo,
    block_at_revision,
    require_revision,
    require_valid,
    require_valid_author,
    require_valid_filter,
    require_writable,
)
from mnemesh_blocks.store.blocks import BlockStore, BlockTransaction, Recorded
from mnemesh_blocks.usecases import changes


class BlockService:
    """Creates, reads, changes and deletes the blocks of the caller's organization."""

    def __init__(self, store: BlockStore, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def create_block(
        self, caller: Principal, draft: Block, agent_ids: Sequence[str], key: RequestKey | None
    ) -> Block:
        """Stores `draft` under a new id and attaches it to the agents.

        Raises:
            InvalidArgument: A field breaks its rule, or the agent that the block is created for is not to hold it.
            BlockLimitExceeded: The value is longer than the limit.
            BlockLabelTaken: One of the agents holds another block under this label.
            AgentErased: One of the agents was erased.
        """
        for agent_id in agent_ids:
            require_id(agent_id, "agent", "agent_ids")
        if draft.created_for_agent_id is not None and draft.created_for_agent_id not in agent_ids:
            raise InvalidArgument("created_for_agent_id must be one of agent_ids.", field="created_for_agent_id")
        block = self._new(caller, draft)

        def create(tx: BlockTransaction) -> Block:
            changes.insert_block(tx, block, OwnerAuthor(caller.subject_id))
            for agent_id in agent_ids:
                changes.attach_block(tx, agent_id, block)
            return block

        def ask(tx: BlockTransaction) -> None:
            for agent_id in agent_ids:
                tx.ask_holder(agent_id)
                tx.ask_held_block(agent_id, block.label)

        return await self._store.write_once(caller.organization_id, key, create, changes.BLOCK, ask=ask)

    async def create_core_memory(
        self,
        caller: Principal,
        agent_id: str,
        drafts: Sequence[Block],
        block_ids: Sequence[str],
        key: RequestKey | None,
    ) -> CoreMemory:
        """Stores `drafts` under new ids, attaches them and existing blocks to an agent, and returns its core memory.

        Raises:
            InvalidArgument, BlockLimitExceeded: A block breaks a rule. Metadata: field, such as `blocks[3].label`.
            BlockNotFound: The organization has no block with one of the ids.
            BlockLabelTaken: The agent, or one that it is linked with, holds another block under the label of one.
            AgentErased: The agent was erased.
        """
        require_id(agent_id, "agent", "agent_id")
        blocks = []
        for at, draft in enumerate(drafts):
            with _named(f"blocks[{at}]"):
                blocks.append(self._new(caller, draft))
        for block_id in block_ids:
            require_id(block_id, "block", "block_ids")

        def create(tx: BlockTransaction) -> CoreMemory:
            holder_ids = changes.linked_agents(tx, agent_id)
            for at, block in enumerate(blocks):
                with _named(f"blocks[{at}]"):
                    changes.insert_block(tx, block, OwnerAuthor(caller.subject_id))
                    changes.attach_to(tx, holder_ids, block)
            for block_id in block_ids:
                with _named("block_ids"):
                    changes.attach_to(tx, holder_ids, changes.get_block(tx, block_id))
            return tx.read_core_memory(agent_id)

        def ask(tx: BlockTransaction) -> None:
            tx.ask_holder(agent_id)
            for block in blocks:
                tx.ask_held_block(agent_id, block.label)

        return await self._store.write_once(
            caller.organization_id,
            key,
            create,
            Recorded(lambda _: [], lambda tx, _: tx.read_core_memory(agent_id)),
            ask=ask,
        )

    def _new(self, caller: Principal, draft: Block) -> Block:
        """Returns a draft as a block with a new id. Raises InvalidArgument, BlockLimitExceeded."""
        subject_id, now = caller.subject_id, self._clock.now()
        provenance = replace(draft.provenance, created_by_id=subject_id, last_updated_by_id=subject_id)
        return require_valid(
            replace(draft, id=self._ids.new("block"), created_at=now, updated_at=now, provenance=provenance)
        )

    async def get_block(self, caller: Principal, block_id: str, as_of: datetime | None = None) -> Block:
        """Returns the block as it is now, or as it was at `as_of`.

        Raises:
            BlockNotFound: The organization has no such block.
            BlockRevisionNotFound: The block did not exist at `as_of`.
        """
        require_id(block_id, "block", "block_id")

        def get(tx: BlockTransaction) -> Block:
            block = changes.get_block(tx, block_id)
            if as_of is None:
                return block
            revision = tx.get_revision_at(block_id, as_of)
            if revision is None:
                raise BlockRevisionNotFound(block_id, f"as of {as_of.isoformat()}")
            return block_at_revision(block, revision)

        return await self._store.read(caller.organization_id, get)

    async def list_blocks(
        self, caller: Principal, filter_: BlockFilter, order: BlockOrder, page: PageQuery
    ) -> Page[Block]:
        """Returns a page of the blocks that match the filter, sorted by `order`."""
        require_valid_filter(filter_)
        return await self._store.read(caller.organization_id, lambda tx: tx.list_blocks(filter_, order, page))

    async def count_blocks(self, caller: Principal, filter_: BlockFilter) -> int:
        """Returns the number of blocks that match the filter."""
        require_valid_filter(filter_)
        return await self._store.read(caller.organization_id, lambda tx: tx.count_blocks(filter_))

    async def update_block(
        self,
        caller: Principal,
        block_id: str,
        fields: Mapping[str, Any],
        base_revision: int | None,
        key: RequestKey | None,
    ) -> Block:
        """Changes fields of a block as its owner. A new label applies to every holder.

        Args:
            caller: The owner.
            block_id: The block.
            fields: New values by the field names of `Block`; `provenance` maps provenance ids to new values.
            base_revision: The revision that the caller saw; None skips the check.
            key: The idempotency key of the request.

        Raises:
            BlockNotFound: The organization has no such block.
            BlockRevisionMismatch: The block has another revision.
            BlockLabelTaken: A holder holds another block under the new label.
        """
        require_id(block_id, "block", "block.id")
        author = OwnerAuthor(caller.subject_id)

        def update(tx: BlockTransaction) -> Block:
            block = require_revision(changes.get_block(tx, block_id), base_revision)
            return changes.update_block(tx, block, BlockOperation.UPDATE, author, self._clock.now(), **fields)

        return await self._store.write_once(caller.organization_id, key, update, changes.BLOCK)

    async def delete_block(self, caller: Principal, block_id: str, key: RequestKey | None) -> None:
        """Deletes a block and detaches it from all holders. Succeeds if the block does not exist."""
        require_id(block_id, "block", "block_id")

        def delete(tx: BlockTransaction) -> None:
            tx.delete_block(block_id)

        await self._store.write_once(caller.organization_id, key, delete, changes.NOTHING)

    async def list_block_agents(self, caller: Principal, block_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents that hold the block.

        Raises:
            BlockNotFound: The organization has no such block.
        """
        require_id(block_id, "block", "block_id")

        def list_holders(tx: BlockTransaction) -> Page[str]:
            changes.get_block(tx, block_id)
            return tx.list_holders(block_id, page)

        return await self._store.read(caller.organization_id, list_holders)


class RevisionService:
    """Lists the revisions of blocks and reverts blocks to older values."""

    def __init__(self, store: BlockStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list_block_revisions(
        self, caller: Principal, block_id: str, page: PageQuery, *, with_previous: bool
    ) -> Page[BlockRevision]:
        """Returns a page of the revisions of a block, sorted by number.

        Args:
            caller: The caller.
            block_id: The block.
            page: The page.
            with_previous: Includes the value before each revision.

        Raises:
            BlockNotFound: The organization has no such block.
        """
        require_id(block_id, "block", "block_id")

        def list_revisions(tx: BlockTransaction) -> Page[BlockRevision]:
            changes.get_block(tx, block_id)
            return tx.list_revisions(block_id, page, with_previous=with_previous)

        return await self._store.read(caller.organization_id, list_revisions)

    async def revert_block(
        self,
        caller: Principal,
        block_id: str,
        target: RevertTarget,
        author: Author,
        base_revision: int | None,
        key: RequestKey | None,
    ) -> Block:
        """Writes the value of an older revision as a new revision.

        Raises:
            BlockNotFound: The organization has no such block.
            BlockNoHistory: There is nothing to undo or redo.
            BlockRevisionNotFound: The block has no such revision.
            BlockReadOnly: The author is an agent and the block is read-only.
            BlockRevisionMismatch: The block is not at `base_revision`.
            BlockLimitExceeded: The value is longer than the current limit.
        """
        require_id(block_id, "block", "block_id")
        require_valid_author(author)

        def revert(tx: BlockTransaction) -> Block:
            block = require_revision(require_writable(changes.get_block(tx, block_id), author), base_revision)
            revision = _find_target(tx, block, target)
            # Undo and redo move within the history: the block shows an existing revision again.
            moved = {} if isinstance(target, ToRevision) else {"content_revision": revision.revision}
            return changes.update_block(
                tx, block, target.operation, author, self._clock.now(), value=revision.value, **moved
            )

        return await self._store.write_once(caller.organization_id, key, revert, changes.BLOCK)


def _find_target(tx: BlockTransaction, block: Block, target: RevertTarget) -> BlockRevision:
    match target:
        case ToRevision(revision):
            return changes.get_revision(tx, block, revision)
        case Undo():
            parent = changes.get_revision(tx, block, block.content_revision).parent_revision
            if parent is None:
                raise BlockNoHistory(block.id, "undo")
            return changes.get_revision(tx, block, parent)
        case Redo():
            child = tx.get_newest_child(block.id, block.content_revision)
            if child is None:
                raise BlockNoHistory(block.id, "redo")
            return child


MAX_ITEMS: Final = 1_000
_WITHOUT_PARENT: Final = (BlockOperation.CREATE, BlockOperation.UNDO, BlockOperation.REDO)


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
            caller.organization_id, key, restore, Recorded(lambda ids: ids, lambda _tx, ids: ids)
        )


def _require_block(block: Block, field: str) -> None:
    require_id(block.id, "block", f"{field}.id")
    with _named(field):
        require_valid(block)
    if block.revision < 1:
        raise InvalidArgument(f"{field}.revision must be at least 1.", field=f"{field}.revision")


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Names the place of a block in a request that has several, in the error that the block causes."""
    try:
        yield
    except MnemeshError as error:
        named = error.field or "block"
        error.metadata["field"] = place = field + named.removeprefix("block")
        error.message = error.message.replace(named, place) if error.field else error.message
        raise


def _insert(tx: BlockTransaction, block: Block) -> bool:
    """Inserts a block unless it exists. Returns whether it is new."""
    if tx.get_block(block.id) is not None:
        return False
    tx.insert_block(block)
    return True


def _attach(tx: BlockTransaction, agent_id: str, conversation_id: str | None, blocks: Sequence[Block]) -> None:
    changes.require_not_erased(tx, agent_id)
    if conversation_id is None:
        for block in blocks:
            changes.attach_block(tx, agent_id, changes.get_block(tx, block.id))
        return
    if not tx.register_conversation(conversation_id, agent_id):
        raise ConversationNotFound(conversation_id)
    for block in blocks:
        if tx.get_held_block(conversation_id, block.label) is None:
            tx.attach(conversation_id, changes.get_block(tx, block.id))


def _insert_revision(tx: BlockTransaction, revision: BlockRevision) -> None:
    block = tx.get_block(revision.block_id)
    if block is None:
        raise BlockNotFound(revision.block_id)
    if revision.revision > block.revision or tx.get_revision(block.id, revision.revision) is not None:
        return
    if revision.parent_revision is None and revision.operation not in _WITHOUT_PARENT:
        before = tx.get_revision(block.id, revision.revision - 1)
        if before is not None and before.value != revision.value:
            revision = replace(revision, parent_revision=before.revision)
    tx.insert_revision(revision)
