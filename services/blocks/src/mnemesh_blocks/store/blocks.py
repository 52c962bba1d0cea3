"""The block store, on SQLite and PostgreSQL: blocks, their revisions, and lists of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_kit.time import Clock
from mnemesh_types.blocks import Block, BlockFilter, BlockRevision

from mnemesh_blocks.model.blocks import BlockOrder
from mnemesh_blocks.store.core_memory import CoreMemoryTransaction
from mnemesh_blocks.store.tables import (
    BLOCK,
    block_identities,
    block_revisions,
    block_tags,
    blocks,
    core_memories,
    holdings,
    request_ledger,
    revision_from_row,
    revision_to_row,
)


def conditions(filter_: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    """Returns the conditions on a row of `blocks`. The caller adds the one on the organization."""
    for column, value in (
        (blocks.c.label, filter_.label),
        (blocks.c.name, filter_.name),
        (blocks.c.is_template, filter_.is_template),
        (blocks.c.hidden, filter_.hidden),
        (blocks.c.project_id, filter_.project_id),
        (blocks.c.template_id, filter_.template_id),
    ):
        if value is not None:
            yield column == value
    for column, text in (
        (blocks.c.label, filter_.label_search),
        (blocks.c.description, filter_.description_search),
        (blocks.c.value, filter_.value_search),
    ):
        if text is not None:
            yield column.icontains(text, autoescape=True)
    if filter_.block_ids:
        yield blocks.c.id.in_(filter_.block_ids)
    yield from _memberships(filter_)
    yield from _holder_counts(filter_)


def _memberships(filter_: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    if filter_.agent_id is not None:
        yield blocks.c.id.in_(sa.select(holdings.c.block_id).where(holdings.c.agent_id == filter_.agent_id))
    if filter_.identity_id is not None:
        owned = sa.select(block_identities.c.block_id).where(block_identities.c.identity_id == filter_.identity_id)
        yield blocks.c.id.in_(owned)
    if filter_.tags_any:
        yield blocks.c.id.in_(sa.select(block_tags.c.block_id).where(block_tags.c.tag.in_(filter_.tags_any)))
    for tag in filter_.tags_all:
        yield blocks.c.id.in_(sa.select(block_tags.c.block_id).where(block_tags.c.tag == tag))


def _holder_counts(filter_: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    holders = (
        sa.select(sa.func.count()).select_from(holdings).where(holdings.c.block_id == blocks.c.id).scalar_subquery()
    )
    if filter_.agents_more_than is not None:
        yield holders > filter_.agents_more_than
    if filter_.agents_fewer_than is not None:
        yield holders < filter_.agents_fewer_than
    if filter_.agents_exactly is not None:
        yield holders == filter_.agents_exactly


T = TypeVar("T")

TOMBSTONE_LIFE: Final = timedelta(days=30)
"""How long writes for an erased agent are refused: longer than callers retry."""
_ORDER_KEYS: Final = {
    BlockOrder.CREATE_TIME: blocks.c.created_at,
    BlockOrder.UPDATE_TIME: blocks.c.updated_at,
    BlockOrder.LABEL: blocks.c.label,
}

# These statements are built once: building one with this many columns costs more than executing it.
_INSERT_BLOCK: Final = Prepared(blocks.insert())
_INSERT_REVISION: Final = Prepared(block_revisions.insert())
_BLOCK: Final = Prepared(
    sa.select(blocks).where(
        blocks.c.id == sa.bindparam("block"), blocks.c.organization_id == sa.bindparam("organization")
    )
)
_HELD_BLOCK: Final = Prepared(
    sa.select(blocks)
    .join(holdings, holdings.c.block_id == blocks.c.id)
    .where(
        holdings.c.organization_id == sa.bindparam("organization"),
        holdings.c.agent_id == sa.bindparam("agent"),
        holdings.c.label == sa.bindparam("held_label"),
    )
)
_UPDATE_BLOCK: Final = Prepared(
    blocks.update()
    .where(blocks.c.id == sa.bindparam("block"), blocks.c.organization_id == sa.bindparam("organization"))
    .values({column.name: sa.bindparam(f"new_{column.name}", type_=column.type) for column in blocks.c})
)


class BlockTransaction(CoreMemoryTransaction):
    """One transaction on the blocks of one organization. Rows of other organizations are not visible in it.

    A holder is an agent, or a conversation that has blocks: methods that take an `agent_id` take the id of either,
    except where they say otherwise. Each holder has a core-memory revision. "Touching" a holder increments it.
    """

    def get_block(self, block_id: str) -> Block | None:
        """Returns the block with this id, or None."""
        parameters = {"block": block_id, "organization": self._organization_id}
        row = _BLOCK.first(self._conn, parameters)
        return None if row is None else BLOCK.from_row(row)

    def get_held_block(self, agent_id: str, label: str) -> Block | None:
        """Returns the block that the holder holds under this label, or None."""
        row = (self._asked.pop((agent_id, label), None) or self._send_held_block(agent_id, label)).first()
        return None if row is None else BLOCK.from_row(row)

    def ask_held_block(self, agent_id: str, label: str) -> None:
        """Sends the query of the first `get_held_block` with these arguments, before the transaction has written."""
        self._asked[agent_id, label] = self._send_held_block(agent_id, label)

    def _send_held_block(self, agent_id: str, label: str) -> Answer:
        parameters = {"agent": agent_id, "held_label": label, "organization": self._organization_id}
        return _HELD_BLOCK.send(self._conn, parameters)

    def insert_block(self, block: Block) -> None:
        """Stores a new block without holders."""
        _INSERT_BLOCK.send(self._conn, BLOCK.to_row(block, organization_id=self._organization_id))
        self._insert_index(block)

    def update_block(self, block: Block, before: Block) -> None:
        """Overwrites a block and touches every holder. A new label applies to all holders.

        Args:
            block: The new state.
            before: The state that was read in this transaction.
        """
        values = {
            f"new_{name}": value for name, value in BLOCK.to_row(block, organization_id=self._organization_id).items()
        }
        _UPDATE_BLOCK.send(self._conn, values | {"block": block.id, "organization": self._organization_id})
        if (before.tags, before.identity_ids) != (block.tags, block.identity_ids):
            for index in (block_tags, block_identities):
                self._conn.execute(index.delete().where(index.c.block_id == block.id))
            self._insert_index(block)
        if before.label != block.label:
            self._conn.execute(holdings.update().where(holdings.c.block_id == block.id).values(label=block.label))
        self._touch_holders(block.id)

    def delete_block(self, block_id: str) -> bool:
        """Deletes a block with its revisions, detaches it and touches its holders; returns False if there is none."""
        self._touch_holders(block_id)
        # Holdings, tags, identities and revisions reference the block with ON DELETE CASCADE.
        return self._conn.execute(blocks.delete().where(blocks.c.id == block_id, self._in_organization)).rowcount == 1

    def list_blocks(self, filter_: BlockFilter, order: BlockOrder, page: PageQuery) -> Page[Block]:
        """Returns a page of the blocks that match the filter, sorted by `order` and then by id."""
        stmt = sa.select(blocks).where(self._in_organization, *conditions(filter_))
        key = _ORDER_KEYS[order]
        return paginate(self._conn, stmt, page, key=key, id=blocks.c.id, scope=self._in_organization).map(
            BLOCK.from_row
        )

    def count_blocks(self, filter_: BlockFilter) -> int:
        """Returns the number of blocks that match the filter."""
        stmt = sa.select(sa.func.count()).select_from(blocks).where(self._in_organization, *conditions(filter_))
        return int(self._conn.execute(stmt).scalar_one())

    def insert_revision(self, revision: BlockRevision) -> None:
        """Records one change of a block."""
        _INSERT_REVISION.send(self._conn, revision_to_row(revision, self._organization_id))

    def get_revision(self, block_id: str, revision: int) -> BlockRevision | None:
        """Returns one recorded change, or None."""
        return self._newest_revision(self._revisions(block_id).where(block_revisions.c.revision == revision))

    def get_revision_at(self, block_id: str, at: datetime) -> BlockRevision | None:
        """Returns the newest change that is not later than `at`, or None."""
        return self._newest_revision(self._revisions(block_id).where(block_revisions.c.created_at <= at))

    def get_newest_child(self, block_id: str, parent: int) -> BlockRevision | None:
        """Returns the newest change that replaced the value of revision `parent`, or None."""
        return self._newest_revision(self._revisions(block_id).where(block_revisions.c.parent == parent))

    def list_revisions(self, block_id: str, page: PageQuery, *, with_previous: bool) -> Page[BlockRevision]:
        """Returns a page of the changes of a block, sorted by revision number.

        Args:
            block_id: The block.
            page: The page.
            with_previous: Sets `previous_value` of each change.
        """
        stmt = self._revisions(block_id)
        if with_previous:
            earlier = block_revisions.alias()
            previous = sa.select(earlier.c.value).where(
                earlier.c.block_id == block_revisions.c.block_id,
                earlier.c.revision == block_revisions.c.revision - 1,
            )
            stmt = stmt.add_columns(previous.scalar_subquery().label("previous_value"))
        number = block_revisions.c.revision
        scope = (block_revisions.c.block_id == block_id) & (block_revisions.c.organization_id == self._organization_id)
        revisions = paginate(self._conn, stmt, page, key=number, id=sa.cast(number, sa.Text), scope=scope)
        return revisions.map(revision_from_row)

    def _revisions(self, block_id: str) -> sa.Select[tuple[object, ...]]:
        return sa.select(block_revisions).where(
            block_revisions.c.block_id == block_id, block_revisions.c.organization_id == self._organization_id
        )

    def _newest_revision(self, stmt: sa.Select[tuple[object, ...]]) -> BlockRevision | None:
        row = self._conn.execute(stmt.order_by(block_revisions.c.revision.desc()).limit(1)).first()
        return None if row is None else revision_from_row(row)

    def _insert_index(self, block: Block) -> None:
        for index, column, values in (
            (block_tags, "tag", block.tags),
            (block_identities, "identity_id", block.identity_ids),
        ):
            if values:
                self._conn.execute(index.insert(), [{"block_id": block.id, column: value} for value in values])


@dataclass(frozen=True, slots=True)
class Recorded(Generic[T]):
    """How the result of a request is recorded, so that a repeat returns it again."""

    ids: Callable[[T], Sequence[str]]
    """Returns the strings to record."""
    result: Callable[[BlockTransaction, Sequence[str]], T]
    """Returns the result from the recorded strings."""


class BlockStore:
    """A transactional store of blocks.

    Transactions are serializable: everything that a unit of work has read is still true when it commits. The store
    repeats a unit of work that conflicts with another one, so the work must have no effect outside its transaction.

    Example:
        ```python
        def append(tx: BlockTransaction) -> Block:
            block = tx.get_held_block(agent_id, "notes")
            after = replace(block, value=f"{block.value}\\nmilk", revision=block.revision + 1)
            tx.update_block(after, block)
            return after


        block = await store.write(organization_id, append)
        ```
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def read(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """Runs `work` on one consistent snapshot and returns its result."""
        return await self._database.read(lambda conn: work(BlockTransaction(conn, organization_id, self._clock)))

    async def write(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """Runs `work` in a transaction and returns its result. An exception rolls the transaction back."""
        return await self._database.write(lambda conn: work(BlockTransaction(conn, organization_id, self._clock)))

    async def write_once(
        self,
        organization_id: str,
        key: RequestKey | None,
        work: Callable[[BlockTransaction], T],
        recorded: Recorded[T],
        *,
        ask: Callable[[BlockTransaction], None] = lambda _: None,
    ) -> T:
        """Runs `work` like `write`, unless the request has taken effect before.

        Args:
            organization_id: The organization of the blocks.
            key: The idempotency key of the request; None always runs `work`.
            work: The effect, which returns the result of the request.
            recorded: How the result is recorded.
            ask: Sends queries of `work`, which are then answered together with that of the key.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """

        def transaction(conn: sa.Connection) -> T:
            tx = BlockTransaction(conn, organization_id, self._clock)
            results: list[T] = []

            def effect() -> Sequence[str]:
                results.append(work(tx))
                return recorded.ids(results[0])

            ids, replayed = self._ledger.once(conn, key, effect, lambda: ask(tx))
            return recorded.result(tx, ids) if replayed else results[0]

        return await self._database.write(transaction, name="blocks.write_once")

    async def purge_ledger(self) -> int:
        """Deletes idempotency keys that are older than a day; returns how many."""
        return await self._database.write(self._ledger.purge)

    async def purge_tombstones(self, before: datetime) -> int:
        """Deletes the tombstones of holders that were erased before that time; returns how many."""
        erased = core_memories.delete().where(core_memories.c.erased_at < before)
        return await self._database.write(lambda conn: conn.execute(erased).rowcount)
