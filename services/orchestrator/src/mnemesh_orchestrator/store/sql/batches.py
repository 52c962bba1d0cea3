"""Batches of runs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate

from mnemesh_orchestrator.model.batches import Batch, BatchDraft
from mnemesh_orchestrator.model.callbacks import CallbackResult
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.store.sql.callback_rows import callbacks_of, delete_callbacks, insert_callback
from mnemesh_orchestrator.store.sql.lease_clock import LeaseClock
from mnemesh_orchestrator.store.sql.run_queue import queue_runs
from mnemesh_orchestrator.store.sql.tables import run_batches, runs


class SqlBatchStore:
    """BatchStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, lease_clock: LeaseClock) -> None:
        self._database = database
        self._lease_clock = lease_clock

    async def find_repeated(self, key: RequestKey | None) -> Batch | None:
        """See BatchStore."""
        return await self._database.read(lambda conn: _repeated(conn, key))

    async def start(self, key: RequestKey | None, draft: BatchDraft, runs: Sequence[Run]) -> Batch:
        """See BatchStore."""

        def write(conn: sa.Connection) -> Batch:
            before = _repeated(conn, key)
            if before is not None:
                return before
            conn.execute(run_batches.insert().values(_row(key, draft)))
            if draft.callback_url is not None:
                insert_callback(conn, draft, draft.callback_url)
            queue_runs(conn, self._lease_clock, runs)
            return _read(conn, draft.organization_id, draft.id)

        return await self._database.write(write)

    async def get(self, organization_id: str, batch_id: str) -> Batch:
        """See BatchStore."""
        return await self._database.read(lambda conn: _read(conn, organization_id, batch_id))

    async def list(self, organization_id: str, page: PageQuery) -> Page[Batch]:
        """See BatchStore."""
        scope = run_batches.c.organization_id == organization_id
        query = sa.select(run_batches).where(scope)

        def read(conn: sa.Connection) -> Page[Batch]:
            found = paginate(conn, query, page, key=run_batches.c.created_at, id=run_batches.c.id, scope=scope)
            batches = {batch.id: batch for batch in _batches(conn, found.items)}
            return found.map(lambda row: batches[row.id])

        return await self._database.read(read)

    async def mark_cancelled(self, organization_id: str, batch_id: str) -> bool:
        """See BatchStore."""
        mark = run_batches.update().where(run_batches.c.id == batch_id).values(was_cancelled=True)

        def write(conn: sa.Connection) -> bool:
            if not _read(conn, organization_id, batch_id).unfinished:
                return False
            conn.execute(mark)
            return True

        return await self._database.write(write)


def delete_empty_batches(conn: sa.Connection, batch_ids: Sequence[str]) -> None:
    """Deletes those of some batches whose last run was deleted."""
    with_runs = sa.select(runs.c.batch_id).where(runs.c.batch_id.in_(batch_ids))
    empty = set(batch_ids) - set(conn.execute(with_runs.distinct()).scalars())
    if empty:
        conn.execute(run_batches.delete().where(run_batches.c.id.in_(empty)))
        delete_callbacks(conn, list(empty))


def _row(key: RequestKey | None, draft: BatchDraft) -> dict[str, Any]:
    return {
        "id": draft.id,
        "organization_id": draft.organization_id,
        "subject_id": draft.subject_id,
        "request_id": key and key.request_id,
        "request_fingerprint": key and key.fingerprint,
        "was_cancelled": False,
        "created_at": draft.created_at,
    }


def _repeated(conn: sa.Connection, key: RequestKey | None) -> Batch | None:
    if key is None:
        return None
    same = sa.and_(run_batches.c.organization_id == key.organization_id, run_batches.c.request_id == key.request_id)
    row = conn.execute(sa.select(run_batches).where(same)).first()
    if row is None:
        return None
    if row.request_fingerprint != key.fingerprint:
        raise RequestIdReused(
            "This request_id was used before with other content.", field="request_id", request_id=key.request_id
        )
    return _batches(conn, [row])[0]


def _read(conn: sa.Connection, organization_id: str, batch_id: str) -> Batch:
    same = sa.and_(run_batches.c.organization_id == organization_id, run_batches.c.id == batch_id)
    row = conn.execute(sa.select(run_batches).where(same)).first()
    if row is None:
        raise NotFound(f"There is no batch {batch_id}.", resource_id=batch_id)
    return _batches(conn, [row])[0]


def _batches(conn: sa.Connection, rows: Sequence[Any]) -> tuple[Batch, ...]:
    """Returns the batches of rows, with the numbers of their runs."""
    ids = [row.id for row in rows]
    query = (
        sa.select(runs.c.batch_id, runs.c.status, sa.func.count(), sa.func.max(runs.c.updated_at))
        .where(runs.c.batch_id.in_(ids))
        .group_by(runs.c.batch_id, runs.c.status)
    )
    counts: dict[str, dict[RunStatus, int]] = defaultdict(dict)
    ends: dict[str, datetime] = {}
    for batch_id, status, count, updated_at in conn.execute(query):
        counts[batch_id][RunStatus(status)] = count
        ends[batch_id] = max(ends.get(batch_id, updated_at), updated_at)
    callbacks = callbacks_of(conn, ids)
    return tuple(_batch(row, counts[row.id], ends.get(row.id), callbacks.get(row.id)) for row in rows)


def _batch(
    row: Any, counts: Mapping[RunStatus, int], last_end: datetime | None, callback: CallbackResult | None
) -> Batch:
    return Batch(row.id, row.created_at, counts, row.was_cancelled, last_end, callback)
