"""Leases in SQL beside those that runs take: turn slots, renewals, and what anybody may claim."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.leases import Lease, RunHead, Watched
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store.sql import approvals
from mnemesh_orchestrator.store.sql import statements as sql
from mnemesh_orchestrator.store.sql.agents import active
from mnemesh_orchestrator.store.sql.conversation_rows import conversation_missing
from mnemesh_orchestrator.store.sql.lease_times import LeaseTimes
from mnemesh_orchestrator.store.sql.tables import agents, conversations, events, runs

_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("its_ids", expanding=True)
_HOLDERS: Final = (
    sa.select(conversations.c.id, conversations.c.epoch, conversations.c.lease_run_id, runs.c.cancel_requested)
    .outerjoin(runs, runs.c.id == conversations.c.lease_run_id)
    .where(conversations.c.id.in_(_IDS))
)
_HEADS: Final = sa.select(
    runs.c.id,
    runs.c.status,
    sa.select(sa.func.max(events.c.sequence)).where(events.c.run_id == runs.c.id).scalar_subquery().label("sequence"),
).where(runs.c.id.in_(_IDS))


class SqlLeaseStore:
    """LeaseStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, times: LeaseTimes) -> None:
        self._database = database
        self._times = times

    async def take_slot(
        self,
        organization_id: str,
        agent_id: str,
        conversation_id: str,
        slot_id: str,
        owner: str,
        *,
        reclaim: bool = True,
    ) -> Lease:
        """See LeaseStore."""

        def write(conn: sa.Connection) -> Lease:
            place = self._place(conn, organization_id, agent_id, conversation_id)
            got = self._slot(conn, place, slot_id, owner, reclaim=reclaim)
            if isinstance(got, ConversationBusy):
                raise got
            return got

        return await self._database.write(write)

    async def await_slot(
        self,
        organization_id: str,
        agent_id: str,
        conversation_id: str,
        slot_id: str,
        owner: str,
        *,
        reclaim: bool = True,
    ) -> Lease | None:
        """See LeaseStore."""

        def write(conn: sa.Connection) -> Lease | None:
            place = self._place(conn, organization_id, agent_id, conversation_id)
            got = self._slot(conn, place, slot_id, owner, reclaim=reclaim)
            if isinstance(got, ConversationBusy):
                self._stand_in_line(conn, place, slot_id, owner)
                return None
            return got

        return await self._database.write(write)

    def _place(self, conn: sa.Connection, organization_id: str, agent_id: str, conversation_id: str) -> Any:
        place = find_place(conn, self._times, organization_id, agent_id, conversation_id)
        if place is None:
            raise missing(conn, organization_id, agent_id, conversation_id)
        return place

    def _slot(
        self, conn: sa.Connection, place: Any, slot_id: str, owner: str, *, reclaim: bool
    ) -> Lease | ConversationBusy:
        """The slot where it is the work's turn, else what is in its way."""
        number = conn.execute(sql.WAIT_NUMBER, {"its_id": slot_id}).scalar()
        turn = place.next_queue_number if number is None else number
        ahead = first_unfinished(conn, place.conversation_id)
        if (
            ahead is not None
            and (ahead.queue_number < turn or ahead.status == RunStatus.RUNNING)
            and approvals.pending_id(conn, place.conversation_id) is None
        ):
            return busy(place.conversation_id, ahead)
        if (place.held and not (reclaim and place.lease_owner == owner)) or is_behind(place, turn):
            return busy(place.conversation_id)
        conn.execute(sql.DELETE_WAIT, {"its_id": slot_id})
        return take(conn, self._times, place, slot_id, owner, place.next_queue_number)

    def _stand_in_line(self, conn: sa.Connection, place: Any, slot_id: str, owner: str) -> None:
        """Keeps a place in the queue, or gives one."""
        if conn.execute(sql.WAIT_NUMBER, {"its_id": slot_id}).scalar() is not None:
            conn.execute(sql.KEEP_WAIT, {"its_id": slot_id, **self._times.expiry})
            return
        here, number = place.conversation_id, place.next_queue_number
        conn.execute(sql.DELETE_LAPSED_WAITS, {"its_conversation": here, **self._times.now})
        conn.execute(sql.ADVANCE_QUEUE, {"its_id": here, "new_next_queue_number": number + 1})
        row = {"id": slot_id, "conversation_id": here, "queue_number": number, "owner": owner}
        conn.execute(sql.INSERT_WAIT, row | self._times.expiry)

    async def leave_line(self, conversation_id: str, slot_id: str) -> bool:
        """See LeaseStore."""
        its_lease = sa.and_(conversations.c.id == conversation_id, conversations.c.lease_run_id == slot_id)
        free = {"lease_owner": None, "lease_run_id": None, "lease_expires_at": None}

        def write(conn: sa.Connection) -> bool:
            conn.execute(sql.DELETE_WAIT, {"its_id": slot_id})
            conn.execute(conversations.update().where(its_lease).values(free))
            return first_unfinished(conn, conversation_id) is not None

        return await self._database.write(write)

    async def leave_lines(self, owner: str) -> None:
        """See LeaseStore."""
        await self._database.write(lambda conn: conn.execute(sql.DELETE_WAITS_OF_OWNER, {"its_owner": owner}))

    async def release(self, lease: Lease) -> bool:
        """See LeaseStore."""

        def write(conn: sa.Connection) -> bool:
            conn.execute(sql.RELEASE_LEASE, {**held(lease), "new_last_message_at": None})
            return first_unfinished(conn, lease.conversation_id) is not None

        return await self._database.write(write)

    async def renew(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        """See LeaseStore."""
        if not leases:
            return ()

        def write(conn: sa.Connection) -> tuple[Lease, ...]:
            extended = {lease: conn.execute(sql.EXTEND_LEASE, held(lease) | self._times.expiry) for lease in leases}
            return tuple(lease for lease, result in extended.items() if result.rowcount == 0)

        return await self._database.write(write)

    async def watch(self, leases: Sequence[Lease], run_ids: Sequence[str]) -> Watched:
        """See LeaseStore."""
        places = [lease.conversation_id for lease in leases]

        def read(conn: sa.Connection) -> Watched:
            held_now = {row.id: row for row in conn.execute(_HOLDERS, {"its_ids": places})} if places else {}
            heads = conn.execute(_HEADS, {"its_ids": list(run_ids)}).all() if run_ids else []
            lost = tuple(lease for lease in leases if not _is_held(lease, held_now.get(lease.conversation_id)))
            return Watched(
                lost,
                tuple(row.lease_run_id for row in held_now.values() if row.cancel_requested),
                {row.id: RunHead(row.sequence or 0, RunStatus(row.status).ended) for row in heads},
            )

        return await self._database.read(read)

    async def request_cancel(self, organization_id: str, run_id: str) -> bool:
        """See LeaseStore."""
        its_run = sa.and_(runs.c.organization_id == organization_id, runs.c.id == run_id)
        statement = runs.update().where(its_run, sql.UNFINISHED).values(cancel_requested=True)
        return await self._database.write(lambda conn: conn.execute(statement).rowcount > 0)

    async def claimable(self, owner: str) -> tuple[str, ...]:
        """See LeaseStore."""
        unfinished = sa.select(runs.c.conversation_id).where(sql.UNFINISHED).distinct()
        query = (
            sa.select(conversations.c.id)
            .join(agents, agents.c.id == conversations.c.agent_id)
            .where(
                conversations.c.id.in_(unfinished),
                agents.c.state == AgentState.ACTIVE,
                conversations.c.id.not_in(approvals.WAITING_CONVERSATIONS),
                sa.or_(sa.not_(sql.LEASE_HOLDS), conversations.c.lease_owner == owner),
            )
        )
        return await self._database.read(lambda conn: tuple(conn.execute(query, self._times.now).scalars()))


def is_behind(place: Any, queue_number: int) -> bool:
    """Whether work that is no run has an earlier place in the queue of a conversation."""
    return place.next_wait is not None and place.next_wait < queue_number


def _is_held(lease: Lease, place: Any) -> bool:
    return place is not None and (place.epoch, place.lease_run_id) == (lease.epoch, lease.run_id)


def find_place(
    conn: sa.Connection, times: LeaseTimes, organization_id: str, agent_id: str, conversation_id: str
) -> Any:
    """See `statements.PLACE`; None where the agent or conversation is not there, or is not ACTIVE."""
    asked = {"its_organization": organization_id, "its_agent": agent_id, "its_conversation": conversation_id}
    return conn.execute(sql.PLACE, asked | times.now).first()


def missing(conn: sa.Connection, organization_id: str, agent_id: str, conversation_id: str) -> NotFound:
    """Which of the two is not there."""
    try:
        active(conn, organization_id, agent_id)
    except NotFound as error:
        return error
    return conversation_missing(conversation_id)


def take(conn: sa.Connection, times: LeaseTimes, place: Any, run_id: str, owner: str, next_queue_number: int) -> Lease:
    """Gives a conversation's lease to `owner`, under a new epoch."""
    lease = Lease(run_id, place.conversation_id, owner, place.epoch + 1)
    taken = {
        "its_id": lease.conversation_id,
        "new_epoch": lease.epoch,
        "new_lease_owner": owner,
        "new_lease_run_id": run_id,
        "new_next_queue_number": next_queue_number,
    }
    conn.execute(sql.TAKE_LEASE, taken | times.expiry)
    return lease


def first_unfinished(conn: sa.Connection, conversation_id: str) -> Any:
    """The row of the run whose turn it is, or None."""
    return conn.execute(sql.FIRST_UNFINISHED, {"its_conversation": conversation_id}).first()


def busy(conversation_id: str, ahead: Any = None) -> ConversationBusy:
    """The error for a conversation that is taken: by the run of a row, or by work that is no run."""
    if ahead is not None:
        return ConversationBusy(f"Run {ahead.id} holds the conversation.", run_id=ahead.id)
    return ConversationBusy("The conversation is being changed.", conversation_id=conversation_id)


def held(lease: Lease) -> dict[str, Any]:
    """The parameters of a statement that takes effect while a lease holds."""
    return {"its_conversation": lease.conversation_id, "its_epoch": lease.epoch, "its_run": lease.run_id}


def require_held(lease: Lease, updated: sa.CursorResult[Any]) -> None:
    """Fails where such a statement took no effect."""
    if updated.rowcount == 0:
        raise LeaseLost(
            "Another holder took the conversation over.",
            conversation_id=lease.conversation_id,
            epoch=str(lease.epoch),
        )
