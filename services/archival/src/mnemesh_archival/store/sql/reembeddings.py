"""Changes of embedders in SQL: SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_archival.store.base import PendingCopy, ReembeddingJob
from mnemesh_archival.store.sql import passage_rows, reembedding_rows
from mnemesh_archival.store.sql.archive_rows import is_archive
from mnemesh_archival.store.sql.tables import archives, operations, passages, reembeddings

CLAIM = timedelta(seconds=60)
"""How long whoever is at a change has before another replica may take it over; longer than copying a batch takes."""


class SqlReembeddingStore:
    """See ReembeddingStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, *, everything: bool) -> list[ReembeddingJob]:
        """See ReembeddingStore.claim."""

        def write(conn: sa.Connection) -> list[ReembeddingJob]:
            now = self._clock.now()
            query = sa.select(reembeddings)
            if not everything:
                query = query.where(reembeddings.c.claimed_until <= now)
            claimed: list[ReembeddingJob] = []
            for row in conn.execute(query.order_by(reembeddings.c.started_at, reembeddings.c.archive_id)).all():
                organization_id, archive_id = row.organization_id, row.archive_id
                if reembedding_rows.is_vacating(conn, organization_id, archive_id, row.embedder):
                    continue
                source = conn.execute(
                    sa.select(archives.c.embedder).where(is_archive(organization_id, archive_id))
                ).scalar_one()
                move = ReembeddingJob(organization_id, archive_id, row.generation, source, row.embedder)
                conn.execute(reembeddings.update().where(_is(move)).values(claimed_until=now + CLAIM))
                claimed.append(move)
            return claimed

        if not await self._database.read(lambda conn: conn.execute(sa.select(reembeddings.c.archive_id)).first()):
            return []
        return await self._database.write(write)

    async def next_batch(self, move: ReembeddingJob, limit: int) -> list[PendingCopy] | None:
        """See ReembeddingStore.next_batch."""

        def write(conn: sa.Connection) -> list[PendingCopy] | None:
            claimed_until = self._clock.now() + CLAIM
            if not conn.execute(reembeddings.update().where(_is(move)).values(claimed_until=claimed_until)).rowcount:
                return None
            being_updated = sa.exists().where(
                operations.c.organization_id == passages.c.organization_id, operations.c.passage_id == passages.c.id
            )
            query = (
                sa.select(passages.c.id, passages.c.point_id, passages.c.changes)
                .where(_left(move), passages.c.state == "live", ~being_updated)
                .limit(limit)
            )
            return [PendingCopy(row.id, UUID(row.point_id), row.changes) for row in conn.execute(query).all()]

        return await self._database.write(write)

    async def mark(self, move: ReembeddingJob, copied: Sequence[PendingCopy]) -> list[UUID]:
        """See ReembeddingStore.mark."""

        def write(conn: sa.Connection) -> list[UUID]:
            organization_id = move.organization_id
            gone: list[UUID] = []
            states = {
                row.id: row for row in passage_rows.rows(conn, organization_id, [each.passage_id for each in copied])
            }
            done: list[str] = []
            for each in copied:
                row = states.get(each.passage_id)
                if row is None or row.state != "live":
                    gone.append(each.point_id)
                elif row.changes == each.changes:
                    done.append(each.passage_id)
            for some in passage_rows.chunks(done):
                conn.execute(
                    passages.update().where(passage_rows.are(organization_id, some)).values(generation=move.generation)
                )
            return gone

        return await self._database.write(write)

    async def strangers(self, move: ReembeddingJob, point_ids: Sequence[UUID]) -> list[UUID]:
        """See ReembeddingStore.strangers."""

        def read(conn: sa.Connection) -> list[UUID]:
            known: set[str] = set()
            for some in passage_rows.chunks([str(point_id) for point_id in point_ids]):
                query = sa.select(passages.c.point_id).where(
                    passages.c.point_id.in_(some),
                    passages.c.organization_id == move.organization_id,
                    passages.c.archive_id == move.archive_id,
                    passages.c.state == "live",
                )
                known.update(conn.execute(query).scalars())
            return [point_id for point_id in point_ids if str(point_id) not in known]

        return await self._database.read(read)

    async def hold_writers(self, move: ReembeddingJob, seconds: float) -> None:
        """See ReembeddingStore.hold_writers."""
        until = self._clock.now() + timedelta(seconds=seconds)
        await self._set(move, writers_wait_until=until)

    async def switch(self, move: ReembeddingJob) -> bool:
        """See ReembeddingStore.switch."""
        organization_id = move.organization_id

        def write(conn: sa.Connection) -> bool:
            row = conn.execute(sa.select(reembeddings).where(_is(move))).first()
            if row is None:
                return True
            left = sa.select(passages.c.id).where(_left(move), passages.c.state != "deleted")
            if conn.execute(left.limit(1)).first() is not None:
                return False
            now = self._clock.now()
            moved = {"embedder": row.embedder, "dimension": row.dimension, "updated_at": now}
            conn.execute(archives.update().where(is_archive(organization_id, move.archive_id)).values(**moved))
            reembedding_rows.end(conn, organization_id, move.archive_id)
            reembedding_rows.vacate(conn, organization_id, move.archive_id, move.source, now, reembedding_rows.GRACE)
            return True

        return await self._database.write(write)

    async def release(self, move: ReembeddingJob, seconds: float) -> None:
        """See ReembeddingStore.release."""
        await self._set(move, claimed_until=self._clock.now() + timedelta(seconds=seconds), writers_wait_until=None)

    async def _set(self, move: ReembeddingJob, **values: Any) -> None:
        await self._database.write(lambda conn: conn.execute(reembeddings.update().where(_is(move)).values(**values)))


def _is(move: ReembeddingJob) -> sa.ColumnElement[bool]:
    return sa.and_(
        reembedding_rows.of(move.organization_id, move.archive_id), reembeddings.c.generation == move.generation
    )


def _left(move: ReembeddingJob) -> sa.ColumnElement[bool]:
    """The passages that the target does not have as they are. Those yet to be stored are among them."""
    return sa.and_(
        passages.c.organization_id == move.organization_id,
        passages.c.archive_id == move.archive_id,
        passages.c.generation < move.generation,
    )
