"""Batches of runs, and the callbacks of runs and batches."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.batches import Batch, BatchDraft
from mnemesh_orchestrator.model.run_config import CallbackResult, ClaimedCallback, is_final, next_attempt
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.store.run_queue import queue_runs
from mnemesh_orchestrator.store.run_rows import callbacks_of, delete_callbacks, insert_callback
from mnemesh_orchestrator.store.tables import callbacks, run_batches, runs
from mnemesh_orchestrator.store.turn_statements import LeaseClock

_UNFINISHED = sa.and_(
    runs.c.status.in_((RunStatus.CREATED, RunStatus.RUNNING)),
    sa.or_(runs.c.id == callbacks.c.target_id, runs.c.batch_id == callbacks.c.target_id),
)
_DUE: Final = (
    sa.select(callbacks)
    .where(callbacks.c.due_at <= sa.bindparam("p_now", type_=callbacks.c.due_at.type), ~sa.exists().where(_UNFINISHED))
    .order_by(callbacks.c.due_at, callbacks.c.target_id)
    .limit(sa.bindparam("p_limit", type_=sa.Integer))
)
"""Built once, as gateways ask every second."""


class BatchStore:
    """Batches. The runs of a batch are those of a RunStore; a batch is deleted with the last of them."""

    def __init__(self, database: Database, lease_clock: LeaseClock) -> None:
        self._database = database
        self._lease_clock = lease_clock

    async def find_repeated(self, key: RequestKey | None) -> Batch | None:
        """Returns the batch that `start` would return instead of storing another one. Raises RequestIdReused."""
        return await self._database.read(lambda conn: _repeated(conn, key))

    async def start(self, key: RequestKey | None, draft: BatchDraft, runs: Sequence[Run]) -> Batch:
        """Stores a batch with its runs at the ends of the queues of their conversations. Claims none.

        A repeat returns the first batch, and stores nothing.

        Raises:
            NotFound: An agent or a conversation does not exist.
            PendingApproval: A conversation waits for an approval.
            RequestIdReused: The key was used before with other content.
        """

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
        """Returns a batch. Raises NotFound."""
        return await self._database.read(lambda conn: _read(conn, organization_id, batch_id))

    async def list(self, organization_id: str, page: PageQuery) -> Page[Batch]:
        """Returns a page of batches ordered by creation."""
        scope = run_batches.c.organization_id == organization_id
        query = sa.select(run_batches).where(scope)

        def read(conn: sa.Connection) -> Page[Batch]:
            found = paginate(conn, query, page, key=run_batches.c.created_at, id=run_batches.c.id, scope=scope)
            batches = {batch.id: batch for batch in _batches(conn, found.items)}
            return found.map(lambda row: batches[row.id])

        return await self._database.read(read)

    async def mark_cancelled(self, organization_id: str, batch_id: str) -> bool:
        """Notes that the caller cancels a batch. Returns False, and changes nothing, if all its runs have ended.

        Raises NotFound.
        """
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


class CallbackStore:
    """Callbacks of runs and batches. They are stored with their run or batch."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, limit: int) -> Sequence[ClaimedCallback]:
        """Returns callbacks of all organizations that are due and whose runs have ended, longest due first.

        Each is due again some time later unless `record` says that it is not.
        """
        now = self._clock.now()
        if not await self._database.read(lambda conn: conn.execute(_DUE, {"p_now": now, "p_limit": 1}).first()):
            return ()  # the usual case, without a write

        def write(conn: sa.Connection) -> list[ClaimedCallback]:
            due = conn.execute(_DUE, {"p_now": now, "p_limit": limit}).all()
            return [_claimed(row) for row in due if _take(conn, row, now)]

        return await self._database.write(write)

    async def record(
        self,
        organization_id: str,
        target_id: str,
        attempt: int,
        *,
        sent_at: datetime,
        status: int | None,
        error: str | None,
    ) -> None:
        """Stores the result of an attempt. Does nothing if it is not the newest one."""
        newest = _attempt(target_id, attempt) & (callbacks.c.organization_id == organization_id)
        values: dict[str, Any] = {"sent_at": sent_at, "status": status, "error": error}
        if is_final(attempt, status):
            values["due_at"] = None
        await self._database.write(lambda conn: conn.execute(callbacks.update().where(newest).values(values)))


def _attempt(target_id: str, attempt: int) -> sa.ColumnElement[bool]:
    return sa.and_(callbacks.c.target_id == target_id, callbacks.c.attempts == attempt)


def _take(conn: sa.Connection, row: Any, now: datetime) -> bool:
    """Counts an attempt. Returns False if another process has counted it."""
    attempt = row.attempts + 1
    values = {"attempts": attempt, "due_at": next_attempt(attempt, now)}
    taken = callbacks.update().where(_attempt(row.target_id, row.attempts), callbacks.c.due_at.is_not(None))
    return conn.execute(taken.values(values)).rowcount == 1


def _claimed(row: Any) -> ClaimedCallback:
    return ClaimedCallback(row.target_id, row.organization_id, row.subject_id, row.url, row.attempts + 1)
