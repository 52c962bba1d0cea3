"""The limit on the sleeptime runs of an organization that execute at the same time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import ConversationState
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store.sql import approvals
from mnemesh_orchestrator.store.sql.lease_clock import LeaseClock
from mnemesh_orchestrator.store.sql.tables import agents, conversations, runs, sleeptime_settings
from mnemesh_orchestrator.store.sql.turn_statements import LEASE_HOLDS

DEFAULT_LIMIT: Final = 8

# The predicate of the partial index, word for word.
_UNFINISHED: Final = sa.text("runs.origin = 'sleeptime' AND runs.status IN ('created', 'running')")
_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("p_organization")
_other: Final = runs.alias("earlier_runs")
_earlier: Final = (
    sa.select(_other.c.id)
    .where(
        _other.c.conversation_id == runs.c.conversation_id,
        sa.text("earlier_runs.status IN ('created', 'running')"),
        _other.c.queue_number < runs.c.queue_number,
    )
    .exists()
)
_COUNTS: Final = (
    sa.select(
        runs.c.organization_id,
        sa.func.count().filter(runs.c.status == RunStatus.CREATED).label("waiting"),
        sa.func.count().filter(runs.c.status == RunStatus.RUNNING).label("running"),
        sleeptime_settings.c.max_concurrent_runs.label("most"),
    )
    .outerjoin(sleeptime_settings, sleeptime_settings.c.organization_id == runs.c.organization_id)
    .where(_UNFINISHED)
    .group_by(runs.c.organization_id, sleeptime_settings.c.max_concurrent_runs)
)
_COUNTS_OF_ONE: Final = _COUNTS.where(runs.c.organization_id == _ORGANIZATION)
_HOLDERS: Final = sa.select(runs).where(
    runs.c.organization_id == _ORGANIZATION, _UNFINISHED, runs.c.status == RunStatus.RUNNING
)
_FIRST_WAITING: Final = (
    sa.select(runs.c.id, runs.c.conversation_id)
    .join(conversations, conversations.c.id == runs.c.conversation_id)
    .join(agents, agents.c.id == conversations.c.agent_id)
    .where(
        runs.c.organization_id == _ORGANIZATION,
        _UNFINISHED,
        runs.c.status == RunStatus.CREATED,
        agents.c.state == AgentState.ACTIVE,
        conversations.c.state == ConversationState.ACTIVE,
        sa.or_(sa.not_(LEASE_HOLDS), conversations.c.lease_owner == sa.bindparam("p_instance")),
        ~_earlier,
        conversations.c.id.not_in(approvals.WAITING_CONVERSATIONS),
    )
    .order_by(runs.c.creation_number)
    .limit(sa.bindparam("p_free", type_=sa.Integer))
)


@dataclass(frozen=True, slots=True)
class SleeptimeLimit:
    """The limit of every organization that has no setting of its own. 0 stops the runs.

    The statements run in the transaction of a claim. Write transactions are serializable, so two processes cannot both
    take the last place.
    """

    most: int = DEFAULT_LIMIT

    def may_start(self, conn: sa.Connection, lease_clock: LeaseClock, run: Any, instance_id: str) -> bool:
        """Returns whether a waiting run may begin now: a place is free, and no earlier run could take it.

        Args:
            conn: The transaction.
            lease_clock: The clock of leases.
            run: The row of a run that is the first of its conversation.
            instance_id: The process that claims it. It may take over its own leases.
        """
        counts = conn.execute(_COUNTS_OF_ONE, {"p_organization": run.organization_id}).all()
        return any(first.id == run.id for first in self._first_waiting(conn, lease_clock, counts, instance_id))

    def startable(
        self, conn: sa.Connection, lease_clock: LeaseClock, organization_id: str | None = None, instance_id: str = ""
    ) -> tuple[str, ...]:
        """Returns the conversations whose sleeptime runs may begin now, oldest runs first.

        Without an organization, returns those of all organizations. Those of which `instance_id` has the lease are
        included.
        """
        query = _COUNTS if organization_id is None else _COUNTS_OF_ONE
        counts = conn.execute(query, {} if organization_id is None else {"p_organization": organization_id}).all()
        return tuple(row.conversation_id for row in self._first_waiting(conn, lease_clock, counts, instance_id))

    def holders(self, conn: sa.Connection, organization_id: str) -> Sequence[Any]:
        """Returns the rows of the sleeptime runs that hold the places of an organization; none if a place is free."""
        own = {"p_organization": organization_id}
        rows = conn.execute(_HOLDERS, own).all()
        setting = sleeptime_settings.c.max_concurrent_runs
        most = conn.execute(
            sa.select(setting).where(sleeptime_settings.c.organization_id == _ORGANIZATION), own
        ).scalar()
        return rows if len(rows) >= (self.most if most is None else most) else ()

    def _first_waiting(
        self, conn: sa.Connection, lease_clock: LeaseClock, counts: Sequence[Any], instance_id: str
    ) -> Iterator[Any]:
        """Yields the waiting runs for which the organizations of `counts` have a place."""
        for row in counts:
            free = (self.most if row.most is None else row.most) - row.running
            if row.waiting and free > 0:
                place = {"p_organization": row.organization_id, "p_free": free, "p_instance": instance_id}
                yield from conn.execute(_FIRST_WAITING, place | lease_clock.now)
