"""The deletion of runs that ended long ago."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store.sql.batches import delete_empty_batches
from mnemesh_orchestrator.store.sql.callback_rows import delete_callbacks
from mnemesh_orchestrator.store.sql.tables import approvals, runs

_AT_ONCE: Final = 200
"""The number of runs that one transaction deletes, so that turns do not wait long."""
_ASKING: Final = sa.select(approvals.c.run_id).where(sa.text("approvals.state = 'pending'"))
_ENDED: Final = tuple(status for status in RunStatus if status.ended)


class SqlRunRetention:
    """RunRetention on SQLite or PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def purge_runs(self, before: datetime) -> int:
        """See RunRetention."""
        ended = sa.and_(runs.c.status.in_(_ENDED), ~runs.c.input_unrecorded)
        old = sa.and_(ended, runs.c.updated_at < before, runs.c.id.not_in(_ASKING))
        query, total = sa.select(runs.c.id, runs.c.batch_id).where(old).limit(_AT_ONCE), 0
        while found := await self._database.read(lambda conn: conn.execute(query).all()):
            total += await self._delete(found, old)
        return total

    async def _delete(self, found: Sequence[Any], old: sa.ColumnElement[bool]) -> int:
        ids, batch_ids = [row.id for row in found], {row.batch_id for row in found if row.batch_id is not None}

        def write(conn: sa.Connection) -> int:
            deleted = conn.execute(runs.delete().where(runs.c.id.in_(ids), old)).rowcount
            delete_callbacks(conn, ids)
            if batch_ids:
                delete_empty_batches(conn, sorted(batch_ids))
            return deleted

        return await self._database.write(write)
