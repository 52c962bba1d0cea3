"""The deletion of expired messages."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import sqlalchemy as sa

from mnemesh_recall.store.sql import message_rows
from mnemesh_recall.store.sql.tables import context_entries, messages
from mnemesh_recall.store.sql.transaction import Transaction

_m = messages.c
_EXPIRED: Final = (
    sa.select(_m.id, _m.agent_id)
    .where(
        _m.created_at < sa.bindparam("before", type_=_m.created_at.type),
        ~sa.exists().where(context_entries.c.message_id == _m.id),
    )
    .order_by(_m.created_at)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)


def delete_expired(tx: Transaction, before: datetime, limit: int) -> int:
    """See MessageStore.delete_expired."""
    expired: dict[str, list[str]] = {}
    for row in tx.conn.execute(_EXPIRED, {"before": before, "limit": limit}):
        expired.setdefault(row.agent_id, []).append(row.id)
    return sum(message_rows.delete(tx, agent_id, ids) for agent_id, ids in expired.items())
