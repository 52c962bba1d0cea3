"""The block store, on SQLite and PostgreSQL: blocks, their revisions, and lists of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate

from mnemesh_blocks.model.blocks import Block, BlockFilter, BlockOrder, BlockRevision
from mnemesh_blocks.store.base import BlockTransaction
from mnemesh_blocks.store.core_memory import SqlCoreMemoryTransaction
from mnemesh_blocks.store.tables import (
    block_from_row,
    block_identities,
    block_revisions,
    block_tags,
    block_to_row,
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

_ORDER_KEYS: Final = {
    BlockOrder.CREATE_TIME: blocks.c.created_at,
    BlockOrder.UPDATE_TIME: blocks.c.updated_at,
    BlockOrder.LABEL: blocks.c.label,
}

# These statements are built once: building one with this many columns costs more than executing it.
_INSERT_BLOCK: Final = blocks.insert()
_INSERT_REVISION: Final = block_revisions.insert()
_BLOCK: Final = sa.select(blocks).where(
    blocks.c.id == sa.bindparam("block"), blocks.c.organization_id == sa.bindparam("organization")
)
_HELD_BLOCK: Final = (
    sa.select(blocks)
    .join(holdings, holdings.c.block_id == blocks.c.id)
    .where(
        holdings.c.organization_id == sa.bindparam("organization"),
        holdings.c.agent_id == sa.bindparam("agent"),
        holdings.c.label == sa.bindparam("held_label"),
    )
)
_UPDATE_BLOCK: Final = blocks.update().where(
    blocks.c.id == sa.bindparam("block"), blocks.c.organization_id == sa.bindparam("organization")
)


class SqlBlockStore:
    """Implements `BlockStore`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(request_ledger, clock)

    async def read(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """See `BlockStore.read`."""
        return await self._database.read(lambda conn: work(SqlBlockTransaction(conn, organization_id, self._clock)))

    async def write(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """See `BlockStore.write`."""
        return await self._database.write(lambda conn: work(SqlBlockTransaction(conn, organization_id, self._clock)))

    async def write_once(
        self,
        organization_id: str,
        key: RequestKey | None,
        work: Callable[[BlockTransaction], T],
        *,
        result_ids: Callable[[T], Sequence[str]],
        replay: Callable[[BlockTransaction, Sequence[str]], T],
    ) -> T:
        """See `BlockStore.write_once`."""

        def transaction(conn: sa.Connection) -> T:
            tx = SqlBlockTransaction(conn, organization_id, self._clock)
            results: list[T] = []

            def effect() -> Sequence[str]:
                results.append(work(tx))
                return result_ids(results[0])

            recorded, replayed = self._ledger.once(conn, key, effect)
            return replay(tx, recorded) if replayed else results[0]

        return await self._database.write(transaction, name="blocks.write_once")

    async def purge_ledger(self) -> int:
        """Deletes idempotency keys that are older than a day; returns how many."""
        return await self._database.write(self._ledger.purge)

    async def purge_tombstones(self, before: datetime) -> int:
        """Deletes the tombstones of holders that were erased before that time; returns how many."""
        erased = core_memories.delete().where(core_memories.c.erased_at < before)
        return await self._database.write(lambda conn: conn.execute(erased).rowcount)


class SqlBlockTransaction(SqlCoreMemoryTransaction):
    """Implements `BlockTransaction`; the base class implements the methods that concern holders."""

    def get_block(self, block_id: str) -> Block | None:
        """See `BlockTransaction.get_block`."""
        parameters = {"block": block_id, "organization": self._organization_id}
        row = self._conn.execute(_BLOCK, parameters).first()
        return None if row is None else block_from_row(row)

    def get_held_block(self, agent_id: str, label: str) -> Block | None:
        """See `BlockTransaction.get_held_block`."""
        parameters = {"agent": agent_id, "held_label": label, "organization": self._organization_id}
        row = self._conn.execute(_HELD_BLOCK, parameters).first()
        return None if row is None else block_from_row(row)

    def insert_block(self, block: Block) -> None:
        """See `BlockTransaction.insert_block`."""
        self._conn.execute(_INSERT_BLOCK, block_to_row(block, self._organization_id))
        self._insert_index(block)

    def update_block(self, block: Block, before: Block) -> None:
        """See `BlockTransaction.update_block`."""
        values = block_to_row(block, self._organization_id)
        self._conn.execute(_UPDATE_BLOCK, values | {"block": block.id, "organization": self._organization_id})
        if (before.tags, before.identity_ids) != (block.tags, block.identity_ids):
            for index in (block_tags, block_identities):
                self._conn.execute(index.delete().where(index.c.block_id == block.id))
            self._insert_index(block)
        if before.label != block.label:
            self._conn.execute(holdings.update().where(holdings.c.block_id == block.id).values(label=block.label))
        self._touch_holders(block.id)

    def delete_block(self, block_id: str) -> bool:
        """See `BlockTransaction.delete_block`."""
        self._touch_holders(block_id)
        # Holdings, tags, identities and revisions reference the block with ON DELETE CASCADE.
        return self._conn.execute(blocks.delete().where(blocks.c.id == block_id, self._in_organization)).rowcount == 1

    def list_blocks(self, filter_: BlockFilter, order: BlockOrder, page: PageQuery) -> Page[Block]:
        """See `BlockTransaction.list_blocks`."""
        stmt = sa.select(blocks).where(self._in_organization, *conditions(filter_))
        key = _ORDER_KEYS[order]
        return paginate(self._conn, stmt, page, key=key, id=blocks.c.id, scope=self._in_organization).map(
            block_from_row
        )

    def count_blocks(self, filter_: BlockFilter) -> int:
        """See `BlockTransaction.count_blocks`."""
        stmt = sa.select(sa.func.count()).select_from(blocks).where(self._in_organization, *conditions(filter_))
        return int(self._conn.execute(stmt).scalar_one())

    def insert_revision(self, revision: BlockRevision) -> None:
        """See `BlockTransaction.insert_revision`."""
        self._conn.execute(_INSERT_REVISION, revision_to_row(revision, self._organization_id))

    def get_revision(self, block_id: str, revision: int) -> BlockRevision | None:
        """See `BlockTransaction.get_revision`."""
        return self._newest_revision(self._revisions(block_id).where(block_revisions.c.revision == revision))

    def get_revision_at(self, block_id: str, at: datetime) -> BlockRevision | None:
        """See `BlockTransaction.get_revision_at`."""
        return self._newest_revision(self._revisions(block_id).where(block_revisions.c.created_at <= at))

    def get_newest_child(self, block_id: str, parent: int) -> BlockRevision | None:
        """See `BlockTransaction.get_newest_child`."""
        return self._newest_revision(self._revisions(block_id).where(block_revisions.c.parent == parent))

    def list_revisions(self, block_id: str, page: PageQuery, *, with_previous: bool) -> Page[BlockRevision]:
        """See `BlockTransaction.list_revisions`."""
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
