"""The outbox of the vector index: what it has yet to learn, noted in the transaction that made it so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from mnemesh_recall.model.outbox import ChangeKind, OutboxRow
from mnemesh_recall.store.sql.tables import index_holders, index_outbox, messages

_NOTE: Final = sa.insert(index_outbox)
_o, _h = index_outbox.c, index_holders.c
_COLLECTION: Final = "messages"
_ITS_ROW: Final = _h.collection == _COLLECTION


def note_messages(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Notes messages that were stored, changed or deleted."""
    if ids:
        conn.execute(_NOTE, [{"kind": ChangeKind.MESSAGE.value, "subject_id": id_, "created_at": now} for id_ in ids])


def note_memories(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Notes episodes and facts that were stored, reworded or erased."""
    if ids:
        conn.execute(_NOTE, [{"kind": ChangeKind.MEMORY.value, "subject_id": id_, "created_at": now} for id_ in ids])


def note_all(conn: sa.Connection, now: datetime) -> int:
    """Notes every searchable message; returns how many."""
    searchable = sa.select(
        sa.literal(ChangeKind.MESSAGE.value), messages.c.id, sa.literal(now, type_=index_outbox.c.created_at.type)
    ).where(messages.c.search_text.is_not(None))
    return conn.execute(sa.insert(index_outbox).from_select(["kind", "subject_id", "created_at"], searchable)).rowcount


def note_agent(conn: sa.Connection, agent_id: str, now: datetime) -> None:
    """Notes that nothing of an agent may be found any more."""
    conn.execute(_NOTE, {"kind": ChangeKind.AGENT.value, "subject_id": agent_id, "created_at": now})


def pending(conn: sa.Connection, limit: int) -> tuple[OutboxRow, ...]:
    """The oldest rows."""
    rows = conn.execute(sa.select(_o.row_id, _o.kind, _o.subject_id, _o.created_at).order_by(_o.row_id).limit(limit))
    return tuple(OutboxRow(row.row_id, ChangeKind(row.kind), row.subject_id, row.created_at) for row in rows)


def hold(conn: sa.Connection, holder: str, now: datetime, lasts: timedelta) -> bool:
    """Takes or keeps the hold on the outbox, where nobody else has it."""
    mine = {"holder": holder, "expires_at": now + lasts}
    free = (_h.holder == holder) | (_h.expires_at <= now)
    if conn.execute(sa.update(index_holders).where(_ITS_ROW, free).values(**mine)).rowcount:
        return True
    if conn.execute(sa.select(_h.holder).where(_ITS_ROW)).first() is not None:
        return False
    conn.execute(sa.insert(index_holders).values(collection=_COLLECTION, **mine))
    return True


def is_held(conn: sa.Connection, holder: str) -> bool:
    """Whether nobody has taken the hold over."""
    return conn.execute(sa.select(_h.holder).where(_ITS_ROW)).scalar() == holder


def let_go(conn: sa.Connection, holder: str) -> None:
    """Gives the hold up."""
    conn.execute(sa.delete(index_holders).where(_ITS_ROW, _h.holder == holder))


def note_again(conn: sa.Connection, rows: Sequence[OutboxRow], now: datetime) -> None:
    """Notes once more what rows name."""
    if rows:
        conn.execute(_NOTE, [{"kind": row.kind.value, "subject_id": row.subject_id, "created_at": now} for row in rows])


def settle(conn: sa.Connection, row_ids: Sequence[int]) -> None:
    """Forgets rows whose news the index has."""
    if row_ids:
        conn.execute(sa.delete(index_outbox).where(_o.row_id.in_(row_ids)))
