"""Callbacks that are due, and the results of calls."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.callbacks import ClaimedCallback, is_final, next_attempt
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store.sql.tables import callbacks, runs

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


class SqlCallbackStore:
    """CallbackStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, limit: int) -> Sequence[ClaimedCallback]:
        """See CallbackStore."""
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
        """See CallbackStore."""
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
