"""The store of changes of embedders in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_archival.store.base.reembeddings import PendingCopy, ReembeddingJob
from mnemesh_archival.store.sql import passage_rows, reembedding_rows
from mnemesh_archival.store.sql.archive_rows import is_archive
from mnemesh_archival.store.sql.tables import archives, operations, passages, reembeddings

CLAIM = timedelta(seconds=60)
"""How long a claim lasts before another replica may claim the change; longer than copying a batch takes."""


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
                if reembedding_rows.is_drop_scheduled(conn, organization_id, archive_id, row.embedder):
                    continue
                source = conn.execute(
                    sa.select(archives.c.embedder).where(is_archive(organization_id, archive_id))
                ).scalar_one()
                job = ReembeddingJob(organization_id, archive_id, row.generation, source, row.embedder)
                conn.execute(reembeddings.update().where(_by_job(job)).values(claimed_until=now + CLAIM))
                claimed.append(job)
            return claimed

        if not await self._database.read(lambda conn: conn.execute(sa.select(reembeddings.c.archive_id)).first()):
            return []
        return await self._database.write(write)

    async def next_batch(self, job: ReembeddingJob, limit: int) -> list[PendingCopy] | None:
        """See ReembeddingStore.next_batch."""

        def write(conn: sa.Connection) -> list[PendingCopy] | None:
            claimed_until = self._clock.now() + CLAIM
            if not conn.execute(reembeddings.update().where(_by_job(job)).values(claimed_until=claimed_until)).rowcount:
                return None
            being_updated = sa.exists().where(
                operations.c.organization_id == passages.c.organization_id, operations.c.passage_id == passages.c.id
            )
            query = (
                sa.select(passages.c.id, passages.c.point_id, passages.c.changes)
                .where(_pending(job), passages.c.state == "live", ~being_updated)
                .limit(limit)
            )
            return [PendingCopy(row.id, UUID(row.point_id), row.changes) for row in conn.execute(query).all()]

        return await self._database.write(write)

    async def mark_copied(self, job: ReembeddingJob, copied: Sequence[PendingCopy]) -> list[UUID]:
        """See ReembeddingStore.mark_copied."""

        def write(conn: sa.Connection) -> list[UUID]:
            organization_id = job.organization_id
            deleted: list[UUID] = []
            states = {
                row.id: row for row in passage_rows.rows(conn, organization_id, [each.passage_id for each in copied])
            }
            done: list[str] = []
            for each in copied:
                row = states.get(each.passage_id)
                if row is None or row.state != "live":
                    deleted.append(each.point_id)
                elif row.changes == each.changes:
                    done.append(each.passage_id)
            for some in passage_rows.chunks(done):
                conn.execute(
                    passages.update()
                    .where(passage_rows.by_ids(organization_id, some))
                    .values(generation=job.generation)
                )
            return deleted

        return await self._database.write(write)

    async def orphaned_points(self, job: ReembeddingJob, point_ids: Sequence[UUID]) -> list[UUID]:
        """See ReembeddingStore.orphaned_points."""

        def read(conn: sa.Connection) -> list[UUID]:
            known: set[str] = set()
            for some in passage_rows.chunks([str(point_id) for point_id in point_ids]):
                query = sa.select(passages.c.point_id).where(
                    passages.c.point_id.in_(some),
                    passages.c.organization_id == job.organization_id,
                    passages.c.archive_id == job.archive_id,
                    passages.c.state == "live",
                )
                known.update(conn.execute(query).scalars())
            return [point_id for point_id in point_ids if str(point_id) not in known]

        return await self._database.read(read)

    async def pause_writers(self, job: ReembeddingJob, seconds: float) -> None:
        """See ReembeddingStore.pause_writers."""
        until = self._clock.now() + timedelta(seconds=seconds)
        await self._set(job, writers_wait_until=until)

    async def switch(self, job: ReembeddingJob) -> bool:
        """See ReembeddingStore.switch."""
        organization_id = job.organization_id

        def write(conn: sa.Connection) -> bool:
            row = conn.execute(sa.select(reembeddings).where(_by_job(job))).first()
            if row is None:
                return True
            pending = sa.select(passages.c.id).where(_pending(job), passages.c.state != "deleted")
            if conn.execute(pending.limit(1)).first() is not None:
                return False
            now = self._clock.now()
            switched = {"embedder": row.embedder, "dimension": row.dimension, "updated_at": now}
            conn.execute(archives.update().where(is_archive(organization_id, job.archive_id)).values(**switched))
            reembedding_rows.end(conn, organization_id, job.archive_id)
            reembedding_rows.schedule_drop(
                conn, organization_id, job.archive_id, job.source, now, reembedding_rows.GRACE
            )
            return True

        return await self._database.write(write)

    async def release(self, job: ReembeddingJob, seconds: float) -> None:
        """See ReembeddingStore.release."""
        await self._set(job, claimed_until=self._clock.now() + timedelta(seconds=seconds), writers_wait_until=None)

    async def _set(self, job: ReembeddingJob, **values: Any) -> None:
        await self._database.write(
            lambda conn: conn.execute(reembeddings.update().where(_by_job(job)).values(**values))
        )


def _by_job(job: ReembeddingJob) -> sa.ColumnElement[bool]:
    return sa.and_(
        reembedding_rows.of(job.organization_id, job.archive_id), reembeddings.c.generation == job.generation
    )


def _pending(job: ReembeddingJob) -> sa.ColumnElement[bool]:
    """Returns the condition that selects passages without an up-to-date copy, pending ones included."""
    return sa.and_(
        passages.c.organization_id == job.organization_id,
        passages.c.archive_id == job.archive_id,
        passages.c.generation < job.generation,
    )
