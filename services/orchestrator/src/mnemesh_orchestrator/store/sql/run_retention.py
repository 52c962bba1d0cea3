"""The deletion of runs that ended long ago."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.runs import RunStatus
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
        query, total = sa.select(runs.c.id).where(old).limit(_AT_ONCE), 0
        while found := await self._database.read(lambda conn: conn.execute(query).scalars().all()):
            total += await self._delete(runs.delete().where(runs.c.id.in_(found), old))
        return total

    async def _delete(self, statement: sa.Delete) -> int:
        return await self._database.write(lambda conn: conn.execute(statement).rowcount)
