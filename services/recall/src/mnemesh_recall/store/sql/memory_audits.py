"""The reads of a memory audit on SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_recall.model.episodes import Episode, Fact, Scope
from mnemesh_recall.store.sql.episode_codec import episode_from_row, fact_from_row
from mnemesh_recall.store.sql.episode_filters import in_scopes, valid
from mnemesh_recall.store.sql.episode_tables import episodes, facts
from mnemesh_recall.store.sql.tables import messages

_f, _m = facts.c, messages.c
_BATCH: Final = 500


class SqlMemoryAuditStore:
    """MemoryAuditStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_stored(
        self, organization_id: str, scopes: Sequence[Scope], position: int, limit: int
    ) -> tuple[list[Episode | Fact], int | None]:
        """See MemoryAuditStore. A position is twice the number of a row, and odd among the episodes."""
        after, is_episode = divmod(position, 2)
        table = episodes if is_episode else facts
        column = table.c
        conditions = [column.organization_id == organization_id, column.row_id > after]
        if scopes:
            conditions.append(in_scopes(table, scopes))
        query = sa.select(table).where(*conditions).order_by(column.row_id).limit(limit)
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        memories: list[Episode | Fact] = [episode_from_row(row) if is_episode else fact_from_row(row) for row in rows]
        if len(rows) == limit:
            return memories, 2 * rows[-1].row_id + is_episode
        return memories, None if is_episode else 1

    async def list_valid(self, organization_id: str, scope: Scope, limit: int) -> list[Fact]:
        """See MemoryAuditStore."""
        now = self._clock.now()
        query = (
            sa.select(facts)
            .where(
                _f.organization_id == organization_id,
                in_scopes(facts, [scope]),
                _f.closed_at.is_(None),
                *valid(now, now),
            )
            .order_by(_f.row_id.desc())
            .limit(limit)
        )
        return [fact_from_row(row) for row in await self._database.read(lambda conn: conn.execute(query).all())]

    async def existing_messages(self, organization_id: str, message_ids: Sequence[str]) -> frozenset[str]:
        """See MemoryAuditStore."""

        def read(conn: sa.Connection) -> frozenset[str]:
            found: set[str] = set()
            for start in range(0, len(message_ids), _BATCH):
                owned = (_m.organization_id == organization_id, _m.id.in_(message_ids[start : start + _BATCH]))
                found.update(conn.execute(sa.select(_m.id).where(*owned)).scalars())
            return frozenset(found)

        return await self._database.read(read)
