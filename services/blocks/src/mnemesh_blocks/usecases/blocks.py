"""The use cases of blocks. Each runs in one transaction, so it takes effect completely or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_blocks.errors import BlockRevisionNotFound
from mnemesh_blocks.model.authors import OwnerAuthor
from mnemesh_blocks.model.blocks import (
    Block,
    BlockFilter,
    BlockOrder,
    require_revision,
    require_valid,
    require_valid_filter,
)
from mnemesh_blocks.model.revisions import Operation, block_at_revision
from mnemesh_blocks.store.base import BlockStore, BlockTransaction
from mnemesh_blocks.usecases import changes, lookups


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
        subject_id, now = caller.subject_id, self._clock.now()
        provenance = replace(draft.provenance, created_by_id=subject_id, last_updated_by_id=subject_id)
        block = require_valid(
            replace(draft, id=self._ids.new("block"), created_at=now, updated_at=now, provenance=provenance)
        )

        def create(tx: BlockTransaction) -> Block:
            changes.insert_block(tx, block, OwnerAuthor(subject_id))
            for agent_id in agent_ids:
                changes.attach_block(tx, agent_id, block)
            return block

        return await self._store.write_once(
            caller.organization_id,
            key,
            create,
            result_ids=lambda created: [created.id],
            replay=lambda tx, ids: lookups.get_block(tx, ids[0]),
        )

    async def get_block(self, caller: Principal, block_id: str, as_of: datetime | None = None) -> Block:
        """Returns the block as it is now, or as it was at `as_of`.

        Raises:
            BlockNotFound: The organization has no such block.
            BlockRevisionNotFound: The block did not exist at `as_of`.
        """
        require_id(block_id, "block", "block_id")

        def get(tx: BlockTransaction) -> Block:
            block = lookups.get_block(tx, block_id)
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
            block = require_revision(lookups.get_block(tx, block_id), base_revision)
            return changes.update_block(tx, block, Operation.UPDATE, author, self._clock.now(), **fields)

        return await self._store.write_once(
            caller.organization_id,
            key,
            update,
            result_ids=lambda updated: [updated.id],
            replay=lambda tx, ids: lookups.get_block(tx, ids[0]),
        )

    async def delete_block(self, caller: Principal, block_id: str, key: RequestKey | None) -> None:
        """Deletes a block and detaches it from all holders. Succeeds if the block does not exist."""
        require_id(block_id, "block", "block_id")

        def delete(tx: BlockTransaction) -> None:
            tx.delete_block(block_id)

        await self._store.write_once(
            caller.organization_id, key, delete, result_ids=lambda _: [], replay=lambda _tx, _ids: None
        )

    async def list_block_agents(self, caller: Principal, block_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents that hold the block.

        Raises:
            BlockNotFound: The organization has no such block.
        """
        require_id(block_id, "block", "block_id")

        def list_holders(tx: BlockTransaction) -> Page[str]:
            lookups.get_block(tx, block_id)
            return tx.list_holders(block_id, page)

        return await self._store.read(caller.organization_id, list_holders)
