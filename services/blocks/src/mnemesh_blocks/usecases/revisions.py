"""The use cases of a block's history."""

from __future__ import annotations

from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_blocks.errors import BlockNoHistory
from mnemesh_blocks.model.authors import Author, require_valid_author
from mnemesh_blocks.model.blocks import Block, require_revision, require_writable
from mnemesh_blocks.model.revisions import BlockRevision, Redo, RevertTarget, ToRevision, Undo
from mnemesh_blocks.store.base import BlockStore, BlockTransaction
from mnemesh_blocks.usecases import changes, lookups


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
            lookups.get_block(tx, block_id)
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
            block = require_revision(require_writable(lookups.get_block(tx, block_id), author), base_revision)
            revision = _find_target(tx, block, target)
            # Undo and redo move within the history: the block shows an existing revision again.
            moved = {} if isinstance(target, ToRevision) else {"content_revision": revision.revision}
            return changes.update_block(
                tx, block, target.operation, author, self._clock.now(), value=revision.value, **moved
            )

        return await self._store.write_once(
            caller.organization_id,
            key,
            revert,
            result_ids=lambda reverted: [reverted.id],
            replay=lambda tx, ids: lookups.get_block(tx, ids[0]),
        )


def _find_target(tx: BlockTransaction, block: Block, target: RevertTarget) -> BlockRevision:
    match target:
        case ToRevision(revision):
            return lookups.get_revision(tx, block, revision)
        case Undo():
            parent = lookups.get_revision(tx, block, block.content_revision).parent
            if parent is None:
                raise BlockNoHistory(block.id, "undo")
            return lookups.get_revision(tx, block, parent)
        case Redo():
            child = tx.get_newest_child(block.id, block.content_revision)
            if child is None:
                raise BlockNoHistory(block.id, "redo")
            return child
