"""The pools of runs: how many of an organization and an agent execute at the same time, and which begin next."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared

from mnemesh_orchestrator.errors import BudgetExceeded
from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.budgets import Payer
from mnemesh_orchestrator.model.conversations import ConversationState
from mnemesh_orchestrator.model.runs import UNLIMITED, PoolLimits, RunPool, RunStatus
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store.tables import (
    agents,
    approvals,
    budgets,
    conversations,
    runs,
    sleeptime_settings,
)
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
    .where(
        _other.c.conversation_id == sa.bindparam("p_conversation"),
        _unfinished_other,
        # A client's run waits for a place of its own, not for one of background work.
        sa.or_(
            _other.c.pool.is_(None), sa.and_(_other.c.pool == RunPool.CLIENT, _other.c.pool != sa.bindparam("p_pool"))
        ),
    )
    .limit(1)
)
_OF_ORGANIZATION: Final = sa.and_(budgets.c.organization_id == runs.c.organization_id, budgets.c.agent_id.is_(None))
_MOST: Final = sa.case(
    (runs.c.pool == RunPool.SLEEPTIME, sa.func.max(sleeptime_settings.c.max_concurrent_runs)),
    else_=sa.func.max(budgets.c.max_concurrent_runs),
)
_running: Final = runs.alias("running_runs")
_EXECUTES: Final = sa.and_(
    sa.text("running_runs.pool IS NOT NULL AND running_runs.status IN ('created', 'running')"),
    _running.c.organization_id == _ORGANIZATION,
    _running.c.pool == RunPool.CLIENT,
    _running.c.status == RunStatus.RUNNING,
)
_COUNT_RUNNING: Final = sa.select(sa.func.count()).select_from(_running).where(_EXECUTES)


def _max_runs(parameter: str) -> Any:
    return sa.select(budgets.c.max_concurrent_runs).where(budgets.c.id == sa.bindparam(parameter)).scalar_subquery()


_CLIENT_PLACES: Final = sa.select(
    _max_runs("p_budget").label("most"),
    _max_runs("p_budget_of_agent").label("most_of_agent"),
    _COUNT_RUNNING.scalar_subquery().label("running"),
    _COUNT_RUNNING.where(_running.c.agent_id == sa.bindparam("p_agent")).scalar_subquery().label("running_of_agent"),
)
_AGENT_IS_FULL: Final = (
    sa.select(budgets.c.id)
    .where(
        budgets.c.agent_id == runs.c.agent_id,
        budgets.c.organization_id == _ORGANIZATION,
        budgets.c.max_concurrent_runs
        <= _COUNT_RUNNING.where(_running.c.agent_id == runs.c.agent_id).correlate(runs).scalar_subquery(),
    )
    .exists()
)
_COUNTS: Final = (
    sa.select(
        runs.c.organization_id,
        runs.c.pool,
        sa.func.count().filter(runs.c.status == RunStatus.CREATED).label("waiting"),
        sa.func.count().filter(runs.c.status == RunStatus.RUNNING).label("running"),
        _MOST.label("most"),
    )
    .outerjoin(
        sleeptime_settings,
        sa.and_(runs.c.pool == RunPool.SLEEPTIME, sleeptime_settings.c.organization_id == runs.c.organization_id),
    )
    .outerjoin(budgets, sa.and_(runs.c.pool == RunPool.CLIENT, _OF_ORGANIZATION))
    .where(UNFINISHED_OF_POOLS)
    .group_by(runs.c.organization_id, runs.c.pool)
)
_ALL_COUNTS: Final = Prepared(_COUNTS)
_COUNTS_OF_ORGANIZATION: Final = _COUNTS.where(runs.c.organization_id == _ORGANIZATION)
_COUNTS_OF_POOL: Final = _COUNTS_OF_ORGANIZATION.where(runs.c.pool == sa.bindparam("p_pool"))
_FIRST_WAITING: Final = (
    sa.select(runs.c.id, runs.c.conversation_id, runs.c.organization_id, runs.c.agent_id)
    .join(conversations, conversations.c.id == runs.c.conversation_id)
    .outerjoin(agents, agents.c.id == conversations.c.agent_id)
    .where(
        runs.c.organization_id == _ORGANIZATION,
        runs.c.pool == sa.bindparam("p_pool"),
        UNFINISHED_OF_POOLS,
        runs.c.status == RunStatus.CREATED,
        sa.or_(agents.c.state == AgentState.ACTIVE, conversations.c.group_id.is_not(None)),
        conversations.c.state == ConversationState.ACTIVE,
        sa.or_(sa.not_(LEASE_HOLDS), conversations.c.lease_owner == sa.bindparam("p_instance")),
        ~_earlier,
        sa.or_(runs.c.pool != RunPool.CLIENT, ~_AGENT_IS_FULL),
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
class ClientPlaces:
    """The budgets of an organization and of an agent: their ids, the runs that execute, and how many may."""

    of_organization: tuple[str, int, int]
    of_agent: tuple[str, int, int]

    def require_free(self) -> None:
        """Raises BudgetExceeded if no place is free."""
        for owner, (budget_id, running, most) in (("organization", self.of_organization), ("agent", self.of_agent)):
            if running >= most:
                raise BudgetExceeded(
                    f"{running:,} runs of the {owner} execute, and {most:,} may. Try again later, or use StartRun.",
                    budget_id=budget_id,
                    limit="concurrent_runs",
                    max=str(most),
                    used=str(running),
                    retry_after_seconds="1",
                )

    @property
    def is_free(self) -> bool:
        """Whether a run may begin."""
        return all(running < most for _, running, most in (self.of_organization, self.of_agent))


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
            run: The row of a run that is the first of its conversation.
            instance_id: The process that claims it. It may take over its own leases.
        """
        behind = {"p_conversation": run.conversation_id, "p_pool": run.pool}
        if conn.execute(_HOLDS_UP, behind).first() is not None:
            return True
        pool = {"p_organization": run.organization_id, "p_pool": run.pool}
        counts = conn.execute(_COUNTS_OF_POOL, pool).all()
        return any(first.id == run.id for first in self._first_waiting(conn, lease_clock, counts, instance_id))

    def client_limit(self, conn: sa.Connection, payer: Payer) -> "ClientPlaces | None":
        """Returns how many runs of clients of an organization and an agent execute and may; None if nothing limits."""
        budget, budget_of_agent = payer.budget_ids
        parameters = {"p_organization": payer.organization_id, "p_agent": payer.agent_id, "p_budget": budget}
        row = conn.execute(_CLIENT_PLACES, {**parameters, "p_budget_of_agent": budget_of_agent}).one()
        if row.most is None and row.most_of_agent is None and self.limits.client is None:
            return None
        return ClientPlaces(
            (budget, row.running, self.limits.places(RunPool.CLIENT, row.most)),
            (budget_of_agent, row.running_of_agent, UNLIMITED if row.most_of_agent is None else row.most_of_agent),
        )

    def startable(
        self, conn: sa.Connection, lease_clock: LeaseClock, organization_id: str | None = None, instance_id: str = ""
    ) -> tuple[str, ...]:
        """Returns the conversations for whose runs there is a place, the oldest runs of each pool first.

        Without an organization, returns those of all organizations. Those of which `instance_id` has the lease are
        included.
        """
        if organization_id is None:
            counts = _ALL_COUNTS.all(conn, {})
        else:
            counts = conn.execute(_COUNTS_OF_ORGANIZATION, {"p_organization": organization_id}).all()
        waiting = list(self._first_waiting(conn, lease_clock, counts, instance_id))
        return tuple(row.conversation_id for row in in_turns(waiting))

    def _first_waiting(
        self, conn: sa.Connection, lease_clock: LeaseClock, counts: Sequence[Any], instance_id: str
    ) -> Iterator[Any]:
        """Yields the waiting runs for which the pools of `counts` have a place."""
        for row in counts:
            free = self.limits.places(RunPool(row.pool), row.most) - row.running
            if row.waiting and free > 0:
                pool = {"p_organization": row.organization_id, "p_pool": row.pool}
                place = {**pool, "p_free": free, "p_instance": instance_id}
                yield from conn.execute(_FIRST_WAITING, place | lease_clock.now)


def in_turns(rows: Sequence[Any]) -> list[Any]:
    """Returns rows in turns of their organizations, and those of each in turns of its agents, in their order."""
    of_agents = _by_rank(rows, lambda row: row.agent_id)
    return _by_rank(of_agents, lambda row: row.organization_id)


def _by_rank(rows: Sequence[Any], owner: Callable[[Any], Any]) -> list[Any]:
    """Returns the first row of each owner, then the second ones, and so on."""
    seen: Counter[Any] = Counter()
    ranked: list[tuple[int, Any]] = []
    for row in rows:
        ranked.append((seen[owner(row)], row))
        seen[owner(row)] += 1
    return [row for _, row in sorted(ranked, key=lambda item: item[0])]


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
