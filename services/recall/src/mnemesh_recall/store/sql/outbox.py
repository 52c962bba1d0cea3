"""The outbox of the vector index. Changes are added in the transaction of the write that causes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_recall.model.outbox import ChangeKind, OutboxRow, PendingChanges
from mnemesh_recall.store.sql.rows import COLUMNS, message_from_row
from mnemesh_recall.store.sql.tables import index_holders, index_outbox, messages

_INSERT: Final = sa.insert(index_outbox)
_o, _h, _m = index_outbox.c, index_holders.c, messages.c
_COLLECTION: Final = "messages"
_LEASE: Final = _h.collection == _COLLECTION
_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("ids", expanding=True)
_OLDEST: Final = (
    sa.select(_o.row_id, _o.kind, _o.subject_id, _o.created_at)
    .order_by(_o.row_id)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_SEARCHABLE: Final = sa.select(*COLUMNS, _m.organization_id).where(_m.id.in_(_IDS), _m.search_text.is_not(None))
_DELETE: Final = sa.delete(index_outbox).where(_o.row_id.in_(_IDS))


class SqlOutboxStore:
    """The outbox on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def get_pending(self, limit: int) -> PendingChanges:
        """See OutboxStore."""
        return await self._database.read(lambda conn: _read_pending(conn, limit))

    async def enqueue_all_messages(self) -> int:
        """See OutboxStore."""
        return await self._database.write(lambda conn: _add_all_messages(conn, self._clock.now()))

    async def acquire_lease(self, instance_id: str, duration: timedelta) -> bool:
        """See OutboxStore."""
        return await self._database.write(lambda conn: _acquire(conn, instance_id, self._clock.now(), duration))

    async def release_lease(self, instance_id: str) -> None:
        """See OutboxStore."""
        release = sa.delete(index_holders).where(_LEASE, _h.holder == instance_id)
        await self._database.write(lambda conn: conn.execute(release))

    async def settle(self, rows: Sequence[OutboxRow], instance_id: str | None = None) -> bool:
        """See OutboxStore."""

        def delete(conn: sa.Connection) -> bool:
            if instance_id is not None and not _has_lease(conn, instance_id):
                _add_again(conn, rows, self._clock.now())
                return False
            if rows:
                conn.execute(_DELETE, {"ids": [row.row_id for row in rows]})
            return True

        return await self._database.write(delete)


def add_messages(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Adds changes for messages that were stored, changed or deleted."""
    _add(conn, ChangeKind.MESSAGE, ids, now)


def add_memories(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Adds changes for episodes and facts that were stored, changed or deleted."""
    _add(conn, ChangeKind.MEMORY, ids, now)


def add_agent(conn: sa.Connection, agent_id: str, now: datetime) -> None:
    """Adds a change for the erasure of an agent."""
    _add(conn, ChangeKind.AGENT, [agent_id], now)


def _add(conn: sa.Connection, kind: ChangeKind, ids: Sequence[str], now: datetime) -> None:
    if ids:
        conn.execute(_INSERT, [{"kind": kind.value, "subject_id": id_, "created_at": now} for id_ in ids])


def _add_all_messages(conn: sa.Connection, now: datetime) -> int:
    searchable = sa.select(
        sa.literal(ChangeKind.MESSAGE.value), _m.id, sa.literal(now, type_=index_outbox.c.created_at.type)
    ).where(_m.search_text.is_not(None))
    return conn.execute(_INSERT.from_select(["kind", "subject_id", "created_at"], searchable)).rowcount


def _add_again(conn: sa.Connection, rows: Sequence[OutboxRow], now: datetime) -> None:
    if rows:
        conn.execute(
            _INSERT, [{"kind": row.kind.value, "subject_id": row.subject_id, "created_at": now} for row in rows]
        )


def _read_pending(conn: sa.Connection, limit: int) -> PendingChanges:
    rows = tuple(
        OutboxRow(row_id, ChangeKind(kind), subject_id, created_at)
        for row_id, kind, subject_id, created_at in conn.execute(_OLDEST, {"limit": limit})
    )
    ids = {row.subject_id for row in rows if row.kind is ChangeKind.MESSAGE}
    if not ids:
        return PendingChanges(rows, {})
    found = conn.execute(_SEARCHABLE, {"ids": list(ids)})
    return PendingChanges(rows, {row[0]: (row[-1], message_from_row(row)) for row in found})


def _acquire(conn: sa.Connection, instance_id: str, now: datetime, duration: timedelta) -> bool:
    lease = {"holder": instance_id, "expires_at": now + duration}
    is_free = (_h.holder == instance_id) | (_h.expires_at <= now)
    if conn.execute(sa.update(index_holders).where(_LEASE, is_free).values(**lease)).rowcount:
        return True
    if conn.execute(sa.select(_h.holder).where(_LEASE)).first() is not None:
        return False
    conn.execute(sa.insert(index_holders).values(collection=_COLLECTION, **lease))
    return True


def _has_lease(conn: sa.Connection, instance_id: str) -> bool:
    return conn.execute(sa.select(_h.holder).where(_LEASE)).scalar() == instance_id
