"""The use cases of core memory. Each is one transaction: it happens whole, or nothing has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import current_principal

from mnemesh_blocks.errors import (
    BlockLabelTaken,
    BlockNotHeld,
    BlockRevisionNotFound,
    ConversationNotFound,
)
from mnemesh_blocks.model.blocks import (
    Author,
    Block,
    BlockRevision,
    CoreMemory,
    Operation,
    OwnerAuthor,
    copied,
)
from mnemesh_blocks.model.edits import Edit
from mnemesh_blocks.model.validation import changed, checked
from mnemesh_blocks.store.base import BlockFilter, BlockOrder, BlockStore, BlockTransaction
from mnemesh_blocks.usecases.lookups import at_revision, attach, held, require_alive, required, writable
from mnemesh_blocks.usecases.reverts import RevertTarget, content_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Edited:
    """A block after a change, and the revision of the core memory that it was changed through."""

    block: Block
    core_revision: int


class BlockService:
    """Core memory for the current principal's organization."""

    def __init__(self, store: BlockStore, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def create_block(self, draft: Block, agent_ids: Sequence[str], key: RequestKey | None) -> Block:
        """Stores `draft` under a new id, and attaches it to the agents.

        Raises:
            BlockLimitExceeded: the value is longer than the limit.
            BlockLabelTaken: one of the agents holds another block so labelled.
            AgentErased: one of the agents was erased.
        """
        subject, now = current_principal().subject_id, self._clock.now()
        origin = replace(draft.provenance, created_by_id=subject, last_updated_by_id=subject)
        block = checked(replace(draft, id=self._ids.new("block"), created_at=now, updated_at=now, provenance=origin))

        def create(tx: BlockTransaction) -> Block:
            tx.insert_block(block)
            tx.insert_revision(_recorded(block, Operation.CREATE, OwnerAuthor(subject)))
            for agent_id in agent_ids:
                attach(tx, agent_id, block)
            return block

        return await self._once(key, create, lambda made: [made.id], lambda tx, ids: required(tx, ids[0]))

    async def get_block(self, block_id: str, as_of: datetime | None = None) -> Block:
        """The block, as it is or as it was at `as_of`.

        Raises:
            BlockNotFound: there is none.
            BlockRevisionNotFound: there was none yet.
        """

        def get(tx: BlockTransaction) -> Block:
            block = required(tx, block_id)
            if as_of is None:
                return block
            then = tx.revision_at(block_id, as_of)
            if then is None:
                raise BlockRevisionNotFound(block_id, f"as old as {as_of.isoformat()}")
            return content_of(then, block)

        return await self._read(get)

    async def list_blocks(self, filter: BlockFilter, order: BlockOrder, page: PageQuery) -> Page[Block]:  # noqa: A002
        """A page of blocks."""
        return await self._read(lambda tx: tx.list_blocks(filter, order, page))

    async def count_blocks(self, filter: BlockFilter) -> int:  # noqa: A002
        """How many blocks `list_blocks` would give in all."""
        return await self._read(lambda tx: tx.count_blocks(filter))

    async def update_block(
        self, block_id: str, changes: Mapping[str, Any], base_revision: int | None, key: RequestKey | None
    ) -> Block:
        """Changes fields of a block, as its owner; a new label holds for every holder.

        Args:
            block_id: the block.
            changes: new values by the field names of `Block`.
            base_revision: the revision that the caller saw; None skips the check.
            key: identifies the request.

        Raises:
            BlockRevisionMismatch: the block moved on.
            BlockLabelTaken: a holder holds another block under the new label.
        """
        author = OwnerAuthor(current_principal().subject_id)

        def update(tx: BlockTransaction) -> Block:
            block = at_revision(required(tx, block_id), base_revision)
            return self._saved(tx, block, Operation.UPDATE, author, **changes)

        return await self._once(key, update, lambda made: [made.id], lambda tx, ids: required(tx, ids[0]))

    async def delete_block(self, block_id: str, key: RequestKey | None) -> None:
        """Deletes a block and detaches it everywhere; there being none is as good."""

        def delete(tx: BlockTransaction) -> None:
            tx.delete_block(block_id)

        await self._once(key, delete, lambda _: [], lambda _tx, _ids: None)

    async def attach_block(self, agent_id: str, block_id: str, key: RequestKey | None) -> int:
        """Makes the agent hold the block; returns the revision of its core memory.

        Raises:
            BlockLabelTaken: it holds another block so labelled.
            AgentErased: it was erased.
        """

        def give(tx: BlockTransaction) -> int:
            attach(tx, agent_id, required(tx, block_id))
            return tx.core_revision(agent_id)

        return await self._once(key, give, lambda revision: [str(revision)], lambda _tx, ids: int(ids[0]))

    async def detach_block(
        self, agent_id: str, key: RequestKey | None, *, block_id: str | None = None, label: str | None = None
    ) -> tuple[str, int]:
        """Ends a holding, named by block or by label; returns the block's id and the revision of the core memory.

        Raises:
            BlockNotHeld: the agent does not hold that block.
            BlockLabelNotFound: it holds none under that label.
        """

        def detach(tx: BlockTransaction) -> tuple[str, int]:
            named = block_id if block_id is not None else held(tx, agent_id, label or "").id
            if not tx.detach(agent_id, named):
                raise BlockNotHeld(agent_id, named)
            return named, tx.core_revision(agent_id)

        return await self._once(
            key, detach, lambda done: [done[0], str(done[1])], lambda _tx, ids: (ids[0], int(ids[1]))
        )

    async def list_block_agents(self, block_id: str, page: PageQuery) -> Page[str]:
        """A page of the agents that hold a block."""

        def holders(tx: BlockTransaction) -> Page[str]:
            required(tx, block_id)
            return tx.list_holders(block_id, page)

        return await self._read(holders)

    async def get_core_memory(
        self, agent_id: str, if_revision: int | None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        """The agent's core memory, as the conversation shows it; None where it is still at `if_revision`."""

        def shown(tx: BlockTransaction) -> CoreMemory | None:
            if conversation_id is None or not tx.is_conversation_of(conversation_id, agent_id):
                return tx.core_memory(agent_id, if_revision)
            shared, own = tx.core_memories([agent_id, conversation_id])
            memory = shared.with_own(own)
            return None if memory.revision == if_revision else memory

        return await self._read(shown)

    async def batch_get_core_memory(self, agent_ids: Sequence[str]) -> Sequence[CoreMemory]:
        """The core memories of several agents, in the order asked for."""
        return await self._read(lambda tx: tx.core_memories(agent_ids))

    async def isolate_blocks(
        self,
        agent_id: str,
        conversation_id: str,
        labels: Sequence[str],
        source_conversation_id: str | None,
        key: RequestKey | None,
    ) -> Sequence[Block]:
        """Gives a conversation copies of the blocks under `labels`; all that it has for itself then.

        Raises:
            BlockLabelNotFound: the agent holds no such block.
            ConversationNotFound: the conversation has blocks of another agent.
            AgentErased: the agent was erased, or the conversation's blocks were released.
        """
        author, now = OwnerAuthor(current_principal().subject_id), self._clock.now()

        def isolate(tx: BlockTransaction) -> Sequence[Block]:
            for holder in (agent_id, conversation_id):
                require_alive(tx, holder)
            if not tx.adopt(conversation_id, agent_id):
                raise ConversationNotFound(conversation_id)
            for label in dict.fromkeys(labels):
                if tx.held_block(conversation_id, label) is None:
                    shown = held(tx, agent_id, label, source_conversation_id)
                    copy = copied(shown, self._ids.new("block"), author.subject_id, now)
                    tx.insert_block(copy)
                    tx.insert_revision(_recorded(copy, Operation.CREATE, author))
                    tx.attach(conversation_id, copy)
            return tx.core_memories([conversation_id])[0].blocks

        return await self._once(
            key,
            isolate,
            lambda blocks: [block.id for block in blocks],
            lambda tx, ids: [required(tx, block_id) for block_id in ids],
        )

    async def release_blocks(self, agent_id: str, conversation_id: str, key: RequestKey | None) -> int:
        """Deletes what a conversation of the agent has for itself, and refuses late writes to it; how many blocks."""

        def release(tx: BlockTransaction) -> int:
            if not tx.is_conversation_of(conversation_id, agent_id):
                return 0
            return tx.erase_agent(conversation_id, with_unshared_blocks=True)[1]

        return await self._once(key, release, lambda count: [str(count)], lambda _tx, ids: int(ids[0]))

    async def edit_block(
        self,
        agent_id: str,
        label: str,
        edit: Edit,
        author: Author,
        key: RequestKey | None,
        conversation_id: str | None = None,
    ) -> Edited:
        """Makes one edit to the block that the agent holds under `label`, or its conversation for itself.

        Edits without a base revision apply to whatever the block says when their turn comes, so none is lost.

        Raises:
            BlockLabelNotFound: the agent holds no such block.
            BlockReadOnly: the author is an agent, and the block is not for agents to edit.
            BlockRevisionMismatch: the block is not at the revision that the edit is based on.
            MnemeshError: what the edit itself refuses; see `edits.py`.
        """

        def apply(tx: BlockTransaction) -> Edited:
            block = writable(held(tx, agent_id, label, conversation_id), author)
            at_revision(block, edit.base_revision)
            edited = self._saved(tx, block, edit.operation, author, value=edit.apply(block.value, label))
            own = tx.core_revision(conversation_id) if conversation_id is not None else 0
            return Edited(edited, tx.core_revision(agent_id) + own)

        return await self._once(
            key,
            apply,
            lambda done: [done.block.id, str(done.core_revision)],
            lambda tx, ids: Edited(required(tx, ids[0]), int(ids[1])),
        )

    async def list_block_revisions(self, block_id: str, page: PageQuery, *, with_previous: bool) -> Page[BlockRevision]:
        """A page of the changes of a block."""

        def revisions(tx: BlockTransaction) -> Page[BlockRevision]:
            required(tx, block_id)
            return tx.list_revisions(block_id, page, with_previous=with_previous)

        return await self._read(revisions)

    async def revert_block(
        self, block_id: str, target: RevertTarget, author: Author, base_revision: int | None, key: RequestKey | None
    ) -> Block:
        """Writes an older value as a new revision.

        Raises:
            BlockNoHistory: there is nothing to undo or redo.
            BlockRevisionNotFound: the block never had that revision.
            BlockReadOnly, BlockRevisionMismatch, BlockLimitExceeded: as for an edit.
        """

        def revert(tx: BlockTransaction) -> Block:
            block = at_revision(writable(required(tx, block_id), author), base_revision)
            found = target.find(tx, block)
            place = {} if target.is_change else {"content_revision": found.revision}
            return self._saved(tx, block, target.operation, author, value=found.value, **place)

        return await self._once(key, revert, lambda made: [made.id], lambda tx, ids: required(tx, ids[0]))

    async def erase_agent(
        self, agent_id: str, key: RequestKey | None, *, with_unshared_blocks: bool
    ) -> tuple[int, int]:
        """Forgets an agent and refuses late writes for it; returns how many blocks were detached and deleted."""
        return await self._once(
            key,
            lambda tx: tx.erase_agent(agent_id, with_unshared_blocks=with_unshared_blocks),
            lambda counts: [str(count) for count in counts],
            lambda _tx, ids: (int(ids[0]), int(ids[1])),
        )

    def _saved(self, tx: BlockTransaction, block: Block, operation: Operation, author: Author, **changes: Any) -> Block:
        """The next revision of `block`, stored and recorded."""
        by = author.subject_id if isinstance(author, OwnerAuthor) else author.agent_id
        writes_value = "value" in changes and "content_revision" not in changes
        if writes_value:
            changes["content_revision"] = block.revision + 1
        after = changed(block, self._clock.now(), by, **changes)
        if after.label != block.label and (agent_id := tx.label_conflict(block.id, after.label)) is not None:
            raise BlockLabelTaken(after.label, agent_id)
        parent = block.content_revision if writes_value else None
        # The block before its revision: writers at once then meet at the row, a conflict that the store runs again, and
        # not at the key of the revision, which would be an error.
        tx.update_block(after, block)
        tx.insert_revision(_recorded(after, operation, author, parent))
        return after

    async def _read(self, work: Callable[[BlockTransaction], T]) -> T:
        return await self._store.read(current_principal().organization_id, work)

    async def _once(
        self,
        key: RequestKey | None,
        work: Callable[[BlockTransaction], T],
        result: Callable[[T], Sequence[str]],
        again: Callable[[BlockTransaction, Sequence[str]], T],
    ) -> T:
        organization_id = current_principal().organization_id
        return await self._store.write_once(key, organization_id, work, result=result, again=again)


def _recorded(block: Block, operation: Operation, author: Author, parent: int | None = None) -> BlockRevision:
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
