"""The limits on the runs of the pools of an organization that execute at the same time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import ConversationState
from mnemesh_orchestrator.model.runs import PoolLimits, RunPool, RunStatus
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store.tables import agents, approvals, conversations, runs, sleeptime_settings
from mnemesh_orchestrator.store.turn_statements import LEASE_HOLDS, LeaseClock

# The predicate of the partial index, word for word.
UNFINISHED_OF_POOLS: Final = sa.text("runs.pool IS NOT NULL AND runs.status IN ('created', 'running')")
WAITS_FOR_PLACE: Final = sa.and_(runs.c.pool.is_not(None), runs.c.status == RunStatus.CREATED)
"""Is true for runs of pools that have not begun."""
_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("p_organization")
_other: Final = runs.alias("other_runs")
_unfinished_other: Final = sa.text("other_runs.status IN ('created', 'running')")
_earlier: Final = (
    sa.select(_other.c.id)
    .where(
        _other.c.conversation_id == runs.c.conversation_id,
        _unfinished_other,
        _other.c.queue_number < runs.c.queue_number,
    )
    .exists()
)
_HOLDS_UP: Final = (
    sa.select(_other.c.id)
    .where(_other.c.conversation_id == sa.bindparam("p_conversation"), _unfinished_other, _other.c.pool.is_(None))
    .limit(1)
)
_COUNTS: Final = (
    sa.select(
        runs.c.organization_id,
        runs.c.pool,
        sa.func.count().filter(runs.c.status == RunStatus.CREATED).label("waiting"),
        sa.func.count().filter(runs.c.status == RunStatus.RUNNING).label("running"),
        sleeptime_settings.c.max_concurrent_runs.label("most"),
    )
    .outerjoin(
        sleeptime_settings,
        sa.and_(runs.c.pool == RunPool.SLEEPTIME, sleeptime_settings.c.organization_id == runs.c.organization_id),
    )
    .where(UNFINISHED_OF_POOLS)
    .group_by(runs.c.organization_id, runs.c.pool, sleeptime_settings.c.max_concurrent_runs)
)
_COUNTS_OF_ORGANIZATION: Final = _COUNTS.where(runs.c.organization_id == _ORGANIZATION)
_COUNTS_OF_POOL: Final = _COUNTS_OF_ORGANIZATION.where(runs.c.pool == sa.bindparam("p_pool"))
_FIRST_WAITING: Final = (
    sa.select(runs.c.id, runs.c.conversation_id)
    .join(conversations, conversations.c.id == runs.c.conversation_id)
    .join(agents, agents.c.id == conversations.c.agent_id)
    .where(
        runs.c.organization_id == _ORGANIZATION,
        runs.c.pool == sa.bindparam("p_pool"),
        UNFINISHED_OF_POOLS,
        runs.c.status == RunStatus.CREATED,
        agents.c.state == AgentState.ACTIVE,
        conversations.c.state == ConversationState.ACTIVE,
        sa.or_(sa.not_(LEASE_HOLDS), conversations.c.lease_owner == sa.bindparam("p_instance")),
        ~_earlier,
        conversations.c.id.not_in(approval_statements.WAITING_CONVERSATIONS),
    )
    .order_by(runs.c.creation_number)
    .limit(sa.bindparam("p_free", type_=sa.Integer))
)

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


@dataclass(frozen=True, slots=True)
class RunPools:
    """The places of the pools, and the waiting runs that get them.

    The statements run in the transaction of a claim. Write transactions are serializable, so two processes cannot both
    take the last place.
    """

    limits: PoolLimits = PoolLimits()  # noqa: RUF009 -- frozen

    def may_start(self, conn: sa.Connection, lease_clock: LeaseClock, run: Any, instance_id: str) -> bool:
        """Returns whether a waiting run of a pool may begin now.

        It may if a place is free and no earlier run could take it. It needs no place if a run outside the pools waits
        after it in the same queue: a client never waits for a place, and a run that holds a place never waits for
        another run's place.

        Args:
            conn: The transaction.
            lease_clock: The clock of leases.
            run: The row of a run that is the first of its conversation.
            instance_id: The process that claims it. It may take over its own leases.
        """
        if conn.execute(_HOLDS_UP, {"p_conversation": run.conversation_id}).first() is not None:
            return True
        pool = {"p_organization": run.organization_id, "p_pool": run.pool}
        counts = conn.execute(_COUNTS_OF_POOL, pool).all()
        return any(first.id == run.id for first in self._first_waiting(conn, lease_clock, counts, instance_id))

    def startable(
        self, conn: sa.Connection, lease_clock: LeaseClock, organization_id: str | None = None, instance_id: str = ""
    ) -> tuple[str, ...]:
        """Returns the conversations for whose runs there is a place, the oldest runs of each pool first.

        Without an organization, returns those of all organizations. Those of which `instance_id` has the lease are
        included.
        """
        if organization_id is None:
            counts = conn.execute(_COUNTS).all()
        else:
            counts = conn.execute(_COUNTS_OF_ORGANIZATION, {"p_organization": organization_id}).all()
        return tuple(row.conversation_id for row in self._first_waiting(conn, lease_clock, counts, instance_id))

    def _first_waiting(
        self, conn: sa.Connection, lease_clock: LeaseClock, counts: Sequence[Any], instance_id: str
    ) -> Iterator[Any]:
        """Yields the waiting runs for which the pools of `counts` have a place."""
        for row in counts:
            most = self.limits.places(RunPool(row.pool)) if row.most is None else row.most
            free = most - row.running
            if row.waiting and free > 0:
                pool = {"p_organization": row.organization_id, "p_pool": row.pool}
                place = {**pool, "p_free": free, "p_instance": instance_id}
                yield from conn.execute(_FIRST_WAITING, place | lease_clock.now)


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
