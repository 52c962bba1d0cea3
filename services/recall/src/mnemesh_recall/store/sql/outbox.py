"""Changes for the outbox of the vector index, in the transaction of the write that causes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.indexing.outbox import add_group, change_rows

from mnemesh_recall.model.outbox import MEMORIES, MESSAGES
from mnemesh_recall.store.sql.tables import index_tables

_INSERT: Final = Prepared(sa.insert(index_tables.changes))


def add_messages(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Adds changes for messages that were stored, changed or deleted."""
    if ids:
        _INSERT.change_each(conn, change_rows(MESSAGES, ids, now))


def add_memories(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Adds changes for episodes and facts that were stored, changed or deleted."""
    if ids:
        _INSERT.change_each(conn, change_rows(MEMORIES, ids, now))


def add_agent(conn: sa.Connection, agent_id: str, now: datetime) -> None:
    """Adds a change for the erasure of an agent."""
    add_group(conn, index_tables, MESSAGES, agent_id, now)
