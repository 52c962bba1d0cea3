"""The numbers of runs and approvals that wait."""

from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.run_pools import RunPool
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store.sql.run_pools import UNFINISHED_OF_POOLS
from mnemesh_orchestrator.store.sql.tables import approvals, runs

# The predicates of the partial indexes, word for word.
_WAITING: Final = (
    sa.select(sa.func.count())
    .select_from(runs)
    .where(sa.text("runs.status IN ('created', 'running')"), runs.c.status == RunStatus.CREATED)
)
_POOLS: Final = (
    sa.select(runs.c.pool, runs.c.status, sa.func.count().label("count"))
    .where(UNFINISHED_OF_POOLS)
    .group_by(runs.c.pool, runs.c.status)
)
_APPROVALS: Final = sa.select(sa.func.count()).select_from(approvals).where(sa.text("approvals.state = 'pending'"))


class QueueCounts:
    """The last known numbers, for gauges, which must not wait for the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.runs_waiting = 0
        self.approvals_waiting = 0
        self._pools: Mapping[tuple[str, str], int] = {}

    def waiting_of(self, pool: RunPool) -> int:
        """Returns the number of runs of a pool that have not begun."""
        return self._pools.get((pool, RunStatus.CREATED), 0)

    def active_of(self, pool: RunPool) -> int:
        """Returns the number of runs of a pool that execute."""
        return self._pools.get((pool, RunStatus.RUNNING), 0)

    async def refresh(self) -> None:
        """Reads the numbers of all organizations."""

        def read(conn: sa.Connection) -> tuple[int, int, dict[tuple[str, str], int]]:
            pools = {(row["pool"], row["status"]): row["count"] for row in conn.execute(_POOLS).mappings()}
            return conn.execute(_WAITING).scalar_one(), conn.execute(_APPROVALS).scalar_one(), pools

        self.runs_waiting, self.approvals_waiting, self._pools = await self._database.read(read)
