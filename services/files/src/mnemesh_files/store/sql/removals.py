"""The store of removals in SQL."""

from __future__ import annotations

from datetime import datetime

import msgspec
import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.sql import Database

from mnemesh_files.store.base.ingestion import Removal
from mnemesh_files.store.sql import folder_rows, passage_rows, removal_rows, text_rows
from mnemesh_files.store.sql.tables import file_passages, removals


class SqlRemovalStore:
    """See RemovalStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, until: datetime, limit: int) -> list[Removal]:
        """See RemovalStore.claim."""
        due = removals.c.due_at <= self._clock.now()
        query = sa.select(removals).where(due).order_by(removals.c.due_at).limit(limit)

        def write(conn: sa.Connection) -> list[Removal]:
            found = conn.execute(query).all()
            for row in found:
                mine = removal_rows.is_removal(row.organization_id, row.kind, row.id)
                conn.execute(removals.update().where(mine).values(due_at=until))
            return [Removal(row.organization_id, row.kind, row.id, msgspec.json.decode(row.details)) for row in found]

        if await self._database.read(lambda conn: conn.execute(query).first()) is None:
            return []
        return await self._database.write(write, name="removals.claim")

    async def archive_of(self, organization_id: str, folder_id: str) -> str | None:
        """See RemovalStore.archive_of."""

        def read(conn: sa.Connection) -> str | None:
            try:
                return str(folder_rows.require(conn, organization_id, folder_id).archive_id)
            except NotFound:
                return None

        return await self._database.read(read)

    async def delete_texts(self, organization_id: str, file_id: str) -> None:
        """See RemovalStore.delete_texts."""

        def write(conn: sa.Connection) -> None:
            text_rows.delete_texts(conn, organization_id, file_id)
            conn.execute(file_passages.delete().where(passage_rows.is_of_file(organization_id, file_id)))

        await self._database.write(write, name="removals.delete_texts")

    async def done(self, removal: Removal) -> None:
        """See RemovalStore.done."""
        mine = removal_rows.is_removal(removal.organization_id, removal.kind, removal.id)
        await self._database.write(
            lambda conn: conn.execute(removals.delete().where(mine)).rowcount, name="removals.done"
        )

    async def postpone(self, removal: Removal, due_at: datetime) -> None:
        """See RemovalStore.postpone."""
        mine = removal_rows.is_removal(removal.organization_id, removal.kind, removal.id)
        postponed = removals.update().where(mine).values(due_at=due_at)
        await self._database.write(lambda conn: conn.execute(postponed).rowcount)
