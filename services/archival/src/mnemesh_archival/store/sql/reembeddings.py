"""The store of changes of embedders in SQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database
from mnemesh_retrieval.indexing.records import Claim

from mnemesh_archival.store.base.reembeddings import CopyBatch, ReembeddingJob
from mnemesh_archival.store.sql import index_changes, reembedding_rows
from mnemesh_archival.store.sql.archive_rows import is_archive
from mnemesh_archival.store.sql.passage_rows import LIVE
from mnemesh_archival.store.sql.tables import archives, left_collections, passages, reembeddings

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
            jobs = [
                ReembeddingJob(row.organization_id, row.archive_id, row.generation, row.embedder)
                for row in conn.execute(query.order_by(reembeddings.c.started_at, reembeddings.c.archive_id))
            ]
            for job in jobs:
                conn.execute(reembeddings.update().where(_by_job(job)).values(claimed_until=now + CLAIM))
            return jobs

        if not await self._database.read(lambda conn: conn.execute(sa.select(reembeddings.c.archive_id)).first()):
            return []
        return await self._database.write(write)

    async def renew(self, job: ReembeddingJob) -> bool:
        """See ReembeddingStore.renew."""
        return await self._database.write(lambda conn: self._renew(conn, job))

    async def next_batch(
        self, job: ReembeddingJob, copied: CopyBatch | None, limit: int, claim: Claim | None
    ) -> CopyBatch | None:
        """See ReembeddingStore.next_batch."""

        def write(conn: sa.Connection) -> CopyBatch | None:
            progress = {}
            if copied is not None and copied.changes:
                progress = {"position": copied.position, "done": reembeddings.c.done + len(copied.changes)}
            if not self._renew(conn, job, **progress):
                return None
            row = conn.execute(sa.select(reembeddings).where(_by_job(job))).one()
            mine = sa.and_(
                passages.c.organization_id == job.organization_id,
                passages.c.archive_id == job.archive_id,
                passages.c.position > row.position,
                passages.c.position <= row.last_position,
                LIVE,
            )
            query = sa.select(passages.c.point_id, passages.c.position).where(mine)
            found = conn.execute(query.order_by(passages.c.position).limit(limit)).all()
            points = [UUID(each.point_id) for each in found]
            changes = index_changes.add(conn, [job.target], points, claim, self._clock.now())
            return CopyBatch(changes, found[-1].position if found else row.position)

        return await self._database.write(write, name="reembeddings.next_batch")

    async def switch(self, job: ReembeddingJob) -> None:
        """See ReembeddingStore.switch."""
        organization_id, archive_id = job.organization_id, job.archive_id

        def write(conn: sa.Connection) -> None:
            row = conn.execute(sa.select(reembeddings).where(_by_job(job))).first()
            if row is None:
                return
            now, mine = self._clock.now(), is_archive(organization_id, archive_id)
            source = conn.execute(sa.select(archives.c.embedder).where(mine)).scalar_one()
            switched = {"embedder": row.embedder, "dimension": row.dimension, "updated_at": now}
            conn.execute(archives.update().where(mine).values(**switched))
            reembedding_rows.end(conn, organization_id, archive_id)
            reembedding_rows.leave(conn, organization_id, archive_id, source, now)

        await self._database.write(write, name="reembeddings.switch")

    async def remove_left(self, limit: int, *, everything: bool) -> bool:
        """See ReembeddingStore.remove_left."""
        now = self._clock.now()
        due = sa.select(left_collections).limit(1)
        if not everything:
            due = due.where(left_collections.c.remove_after <= now)

        def write(conn: sa.Connection) -> bool:
            row = conn.execute(due).first()
            if row is None:
                return False
            mine = sa.and_(
                passages.c.organization_id == row.organization_id,
                passages.c.archive_id == row.archive_id,
                passages.c.position > row.position,
                LIVE,
            )
            query = sa.select(passages.c.point_id, passages.c.position).where(mine)
            found = conn.execute(query.order_by(passages.c.position).limit(limit)).all()
            index_changes.add(conn, [row.embedder], [UUID(each.point_id) for each in found], None, now)
            left = sa.and_(
                left_collections.c.organization_id == row.organization_id,
                left_collections.c.archive_id == row.archive_id,
                left_collections.c.embedder == row.embedder,
            )
            if len(found) < limit:
                conn.execute(left_collections.delete().where(left))
            else:
                conn.execute(left_collections.update().where(left).values(position=found[-1].position))
            return True

        if not await self._database.read(lambda conn: conn.execute(due).first()):
            return False
        return await self._database.write(write, name="reembeddings.remove_left")

    def _renew(self, conn: sa.Connection, job: ReembeddingJob, **values: Any) -> bool:
        renewed = reembeddings.update().where(_by_job(job)).values(claimed_until=self._clock.now() + CLAIM, **values)
        return bool(conn.execute(renewed).rowcount)


def _by_job(job: ReembeddingJob) -> sa.ColumnElement[bool]:
    return sa.and_(
        reembedding_rows.of(job.organization_id, job.archive_id), reembeddings.c.generation == job.generation
    )
