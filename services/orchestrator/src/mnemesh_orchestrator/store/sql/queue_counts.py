"""The numbers of runs and approvals that wait."""

from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store.sql.tables import approvals, runs

# The predicates of the partial indexes, word for word.
_WAITING: Final = (
    sa.select(sa.func.count())
    .select_from(runs)
    .where(sa.text("runs.status IN ('created', 'running')"), runs.c.status == RunStatus.CREATED)
)
_SLEEPTIME: Final = (
    sa.select(runs.c.status, sa.func.count().label("count"))
    .where(sa.text("runs.origin = 'sleeptime' AND runs.status IN ('created', 'running')"))
    .group_by(runs.c.status)
)
_APPROVALS: Final = sa.select(sa.func.count()).select_from(approvals).where(sa.text("approvals.state = 'pending'"))


class QueueCounts:
    """The last known numbers, for gauges, which must not wait for the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.runs_waiting = 0
        self.approvals_waiting = 0
        self.sleeptime_waiting = 0
        self.sleeptime_active = 0

    async def refresh(self) -> None:
        """Reads the numbers of all organizations."""

        def read(conn: sa.Connection) -> tuple[int, int, dict[str, int]]:
            sleeptime = {row["status"]: row["count"] for row in conn.execute(_SLEEPTIME).mappings()}
            return conn.execute(_WAITING).scalar_one(), conn.execute(_APPROVALS).scalar_one(), sleeptime

        self.runs_waiting, self.approvals_waiting, sleeptime = await self._database.read(read)
        self.sleeptime_waiting = sleeptime.get(RunStatus.CREATED, 0)
        self.sleeptime_active = sleeptime.get(RunStatus.RUNNING, 0)
