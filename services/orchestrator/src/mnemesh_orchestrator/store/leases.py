"""Leases of conversations, and the conversations that can be claimed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.errors import Internal, NotFound
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Answer, Prepared

from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.events import Lease, RunHead, Watched
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.agent_rows import active, conversation_missing
from mnemesh_orchestrator.store.run_pools import WAITS_FOR_PLACE, RunPools, in_turns
from mnemesh_orchestrator.store.tables import (
    agents,
    conversations,
    events,
    runs,
)
from mnemesh_orchestrator.store.turn_statements import LeaseClock

MAX_EPOCH: Final = 1 << 62
"""A higher epoch of recall is not overtaken: the sum of epochs must fit into 64 bits."""

_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("p_ids", expanding=True)
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
# To wait for a place may take long.
_UNFINISHED: Final = sa.select(runs.c.conversation_id).where(sql.UNFINISHED, ~WAITS_FOR_PLACE).distinct()
_CLAIMABLE: Final = Prepared(
    sa.select(conversations.c.id, conversations.c.organization_id, conversations.c.agent_id)
    .outerjoin(agents, agents.c.id == conversations.c.agent_id)
    .where(
        conversations.c.id.in_(_UNFINISHED),
        # A group that is being deleted has its runs claimed, too, because they must end.
        sa.or_(agents.c.state == AgentState.ACTIVE, conversations.c.group_id.is_not(None)),
        conversations.c.id.not_in(approval_statements.WAITING_CONVERSATIONS),
        sa.or_(sa.not_(sql.LEASE_HOLDS), conversations.c.lease_owner == sa.bindparam("p_instance")),
    )
)


def is_behind_wait(conversation: Any, queue_number: int) -> bool:
    """Returns whether work other than a run is earlier in the queue than `queue_number`."""
    return conversation.next_wait is not None and conversation.next_wait < queue_number


def find_conversation(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    organization_id: str,
    agent_id: str,
    conversation_id: str,
    *,
    queued: bool = False,
) -> Answer:
    """Asks for the row of a conversation: for None if its agent or itself is not ACTIVE.

    Without an agent, it is the row of a group's queue, or None if the group does not exist. With `queued`, the row has
    the columns of QUEUED_CONVERSATION.
    """
    if agent_id:
        statement = sql.QUEUED_CONVERSATION if queued else sql.LOCKED_CONVERSATION
    else:
        statement = sql.QUEUED_GROUP_QUEUE if queued else sql.LOCKED_GROUP_QUEUE
    parameters = {"p_organization": organization_id, "p_conversation": conversation_id}
    if agent_id:
        parameters["p_agent"] = agent_id
    return statement.send(conn, parameters | lease_clock.now)


def missing_error(conn: sa.Connection, organization_id: str, agent_id: str, conversation_id: str) -> NotFound:
    """Returns the error for the agent, the conversation or the queue of a group that does not exist."""
    if not agent_id:
        return conversation_missing(conversation_id)
    try:
        active(conn, organization_id, agent_id)
    except NotFound as error:
        return error
    return conversation_missing(conversation_id)


def take_lease(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    conversation: Any,
    run_id: str,
    instance_id: str,
    next_queue_number: int,
) -> Lease:
    """Gives the lease of a conversation to `instance_id` under a new epoch, and returns it."""
    lease = Lease(run_id, conversation.conversation_id, instance_id, conversation.epoch + 1, conversation.epoch_lead)
    values = {
        "p_id": lease.conversation_id,
        "new_epoch": lease.epoch,
        "new_lease_owner": instance_id,
        "new_lease_run_id": run_id,
        "new_next_queue_number": next_queue_number,
    }
    sql.TAKE_LEASE.send(conn, values | lease_clock.expiry)
    return lease


def first_unfinished_run(conn: sa.Connection, conversation_id: str) -> Any:
    """Returns the row of the first unfinished run of a conversation, or None."""
    return sql.FIRST_UNFINISHED.first(conn, {"p_conversation": conversation_id})


def next_unfinished_run(conn: sa.Connection, conversation_id: str) -> Answer:
    """Asks for the id of the first unfinished run of a conversation."""
    return sql.FIRST_UNFINISHED_ID.send(conn, {"p_conversation": conversation_id})


def has_unfinished_run(conn: sa.Connection, conversation_id: str) -> bool:
    """Returns whether a conversation has an unfinished run."""
    return next_unfinished_run(conn, conversation_id).first() is not None


def busy_error(conversation_id: str, ahead: Any = None) -> ConversationBusy:
    """Returns the error for a conversation that a run (the row `ahead`) or other work holds."""
    if ahead is not None:
        return ConversationBusy(f"Run {ahead.id} holds the conversation.", run_id=ahead.id)
    return ConversationBusy("Other work holds the conversation. Try again later.", conversation_id=conversation_id)


def lease_parameters(lease: Lease) -> dict[str, Any]:
    """Returns the parameters of a statement that takes effect only while a lease is held."""
    return {"p_conversation": lease.conversation_id, "p_epoch": lease.epoch, "p_run": lease.run_id}


def require_lease(lease: Lease, changed_rows: int) -> None:
    """Raises LeaseLost if such a statement changed no row."""
    if changed_rows == 0:
        raise LeaseLost(
            "This process does not hold the conversation any more.",
            conversation_id=lease.conversation_id,
            epoch=str(lease.epoch),
        )


@contextmanager
def under_lease(lease: Lease, held: Answer) -> Iterator[None]:
    """Raises LeaseLost at the end of the block, also instead of the block's own error, if `held` changed no row.

    The statements of the block are sent without waiting for `held`. The caller's transaction is then rolled back.
    """
    try:
        yield
    finally:
        require_lease(lease, held.changed())


@dataclass(frozen=True, eq=False)
class LeaseStore:
    """The leases of conversations.

    A conversation has one lease holder at a time: a run, or other work, such as a compaction. Each new lease has a
    higher epoch. A lease expires 30 seconds after it was taken, renewed or written under, by the clock of the database.

    Example:
        >>> lease = await leases.acquire(organization_id, agent_id, conversation_id, slot_id, instance_id)
        >>> await leases.renew([lease])
        ()
        >>> await leases.release(lease)
        False
    """

    database: Database
    lease_clock: LeaseClock
    pools: RunPools = RunPools()  # noqa: RUF009 -- frozen

    async def acquire(
        self,
        organization_id: str,
        agent_id: str,
        conversation_id: str,
        slot_id: str,
        instance_id: str,
        *,
        reclaim: bool = True,
        waits: bool = False,
    ) -> Lease | None:
        """Takes the lease of a conversation for work other than a run. Runs that start meanwhile wait.

        Runs that wait for an approval do not block the work. With `reclaim`, a lease of the same instance is left over
        from a crash, and is replaced. With `waits`, the work enters the queue if other work is before it, and None is
        returned. It keeps its position by calling again with the same `slot_id`. A position without calls expires as a
        lease does.

        Raises:
            ConversationBusy: Without `waits`, a run has not ended (metadata: run_id), or other work holds the lease or
                waits for it.
        """

        def write(conn: sa.Connection) -> Lease | None:
            found = find_conversation(conn, self.lease_clock, organization_id, agent_id, conversation_id)
            conversation = found.first()
            if conversation is None:
                raise missing_error(conn, organization_id, agent_id, conversation_id)
            result = self._slot(conn, conversation, slot_id, instance_id, reclaim=reclaim)
            if isinstance(result, Lease):
                return result
            if not waits:
                raise result
            self._wait_in_queue(conn, conversation, slot_id, instance_id)
            return None

        return await self.database.write(write)

    def _slot(
        self, conn: sa.Connection, conversation: Any, slot_id: str, instance_id: str, *, reclaim: bool
    ) -> Lease | ConversationBusy:
        """Takes the lease if it is the turn of the work; otherwise returns the error that names what blocks it."""
        number = conn.execute(sql.WAIT_NUMBER, {"p_id": slot_id}).scalar()
        turn = conversation.next_queue_number if number is None else number
        ahead = first_unfinished_run(conn, conversation.conversation_id)
        if (
            ahead is not None
            and (ahead.queue_number < turn or ahead.status == RunStatus.RUNNING)
            and approval_statements.pending_id(conn, conversation.conversation_id) is None
        ):
            return busy_error(conversation.conversation_id, ahead)
        if (conversation.held and not (reclaim and conversation.lease_owner == instance_id)) or is_behind_wait(
            conversation, turn
        ):
            return busy_error(conversation.conversation_id)
        conn.execute(sql.DELETE_WAIT, {"p_id": slot_id})
        return take_lease(conn, self.lease_clock, conversation, slot_id, instance_id, conversation.next_queue_number)

    def _wait_in_queue(self, conn: sa.Connection, conversation: Any, slot_id: str, instance_id: str) -> None:
        """Extends the position of the work in the queue, or adds the work to the queue."""
        if conn.execute(sql.WAIT_NUMBER, {"p_id": slot_id}).scalar() is not None:
            conn.execute(sql.KEEP_WAIT, {"p_id": slot_id, **self.lease_clock.expiry})
            return
        id_, number = conversation.conversation_id, conversation.next_queue_number
        conn.execute(sql.DELETE_LAPSED_WAITS, {"p_conversation": id_, **self.lease_clock.now})
        conn.execute(sql.ADVANCE_QUEUE, {"p_id": id_, "new_next_queue_number": number + 1})
        row = {"id": slot_id, "conversation_id": id_, "queue_number": number, "owner": instance_id}
        conn.execute(sql.INSERT_WAIT, row | self.lease_clock.expiry)

    async def leave_queue(self, conversation_id: str, slot_id: str) -> bool:
        """Removes work from the queue, and releases its lease. Returns whether a run waits in the conversation."""
        lease_of_work = sa.and_(conversations.c.id == conversation_id, conversations.c.lease_run_id == slot_id)
        free = {"lease_owner": None, "lease_run_id": None, "lease_expires_at": None}

        def write(conn: sa.Connection) -> bool:
            conn.execute(sql.DELETE_WAIT, {"p_id": slot_id})
            conn.execute(conversations.update().where(lease_of_work).values(free))
            return has_unfinished_run(conn, conversation_id)

        return await self.database.write(write)

    async def leave_queues(self, instance_id: str) -> None:
        """Removes all work of an instance from the queues, after a crash of the instance."""
        await self.database.write(lambda conn: conn.execute(sql.DELETE_WAITS_OF_OWNER, {"p_owner": instance_id}))

    async def release(self, lease: Lease) -> bool:
        """Releases a lease if it is still held. Returns whether a run waits in the conversation."""

        def write(conn: sa.Connection) -> bool:
            sql.RELEASE_LEASE.send(conn, {**lease_parameters(lease), "new_last_message_at": None})
            return has_unfinished_run(conn, lease.conversation_id)

        return await self.database.write(write)

    async def overtake(self, lease: Lease, epoch: int) -> int:
        """Raises the epochs of writes to recall above one that recall knows. Returns the epoch of the lease's writes.

        Later leases of the conversation write under higher epochs.

        Raises:
            LeaseLost: The lease is not held.
            Internal: No higher epoch can be stored.
        """
        if epoch >= MAX_EPOCH:
            raise Internal("Recall has an implausible epoch of the conversation.")
        lead = epoch + 1 - lease.epoch

        def write(conn: sa.Connection) -> int:
            held = {**lease_parameters(lease), "p_lead": lead}
            if conn.execute(sql.RAISE_LEAD, held).rowcount:
                return lead
            # Another write of the same lease may have raised it.
            require_lease(lease, sql.EXTEND_LEASE.change(conn, lease_parameters(lease) | self.lease_clock.expiry))
            return int(conn.execute(sql.HOLDER, {"p_conversation": lease.conversation_id}).one().epoch_lead)

        return lease.epoch + await self.database.write(write)

    async def holder(self, conversation_id: str) -> Lease | None:
        """Returns the lease of a conversation, held or expired; None if it was released."""

        def read(conn: sa.Connection) -> Lease | None:
            row = conn.execute(sql.HOLDER, {"p_conversation": conversation_id}).first()
            if row is None:
                return None
            return Lease(row.lease_run_id, conversation_id, row.lease_owner, row.epoch, row.epoch_lead)

        return await self.database.read(read)

    async def renew(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        """Extends the leases that are still held. Returns those that are not."""
        if not leases:
            return ()

        def write(conn: sa.Connection) -> tuple[Lease, ...]:
            extended = {
                lease: sql.EXTEND_LEASE.send(conn, lease_parameters(lease) | self.lease_clock.expiry)
                for lease in leases
            }
            return tuple(lease for lease, answer in extended.items() if answer.changed() == 0)

        return await self.database.write(write)

    async def watch(self, leases: Sequence[Lease], run_ids: Sequence[str]) -> Watched:
        """Returns which of these leases were lost, which of their runs are to be cancelled, and the heads of these
        runs.

        A run that does not exist has no head.
        """
        ids = [lease.conversation_id for lease in leases]

        def read(conn: sa.Connection) -> Watched:
            holders = {row.id: row for row in conn.execute(_HOLDERS, {"p_ids": ids})} if ids else {}
            heads = conn.execute(_HEADS, {"p_ids": list(run_ids)}).all() if run_ids else []
            lost = tuple(lease for lease in leases if not _is_held(lease, holders.get(lease.conversation_id)))
            return Watched(
                lost,
                tuple(row.lease_run_id for row in holders.values() if row.cancel_requested),
                {row.id: RunHead(row.sequence or 0, RunStatus(row.status).ended) for row in heads},
            )

        return await self.database.read(read)

    async def request_cancel(self, organization_id: str, run_id: str) -> bool:
        """Asks the process that executes a run, now or after a takeover, to cancel it.

        Returns False if the run has ended.
        """
        p_run = sa.and_(runs.c.organization_id == organization_id, runs.c.id == run_id)
        statement = runs.update().where(p_run, sql.UNFINISHED).values(cancel_requested=True)
        return await self.database.write(lambda conn: conn.execute(statement).rowcount > 0)

    async def claimable(self, instance_id: str) -> tuple[str, ...]:
        """Returns the conversations of all organizations with unfinished runs that `instance_id` can claim.

        They have no lease holder, their lease has expired, or `instance_id` holds it. Runs of pools that have not begun
        are those for which there is a place. Organizations take turns, and so do the agents of each.
        """

        def read(conn: sa.Connection) -> tuple[str, ...]:
            others = _CLAIMABLE.send(conn, self.lease_clock.now | {"p_instance": instance_id})
            of_pools = self.pools.startable(conn, self.lease_clock, instance_id=instance_id)
            return tuple(dict.fromkeys((*(row.id for row in in_turns(others.all())), *of_pools)))

        return await self.database.read(read)

    async def startable(self, organization_id: str) -> tuple[str, ...]:
        """Returns the conversations for whose runs the pools of an organization have a place now, oldest runs first."""
        return await self.database.read(lambda conn: self.pools.startable(conn, self.lease_clock, organization_id))


def _is_held(lease: Lease, conversation: Any) -> bool:
    return conversation is not None and (conversation.epoch, conversation.lease_run_id) == (lease.epoch, lease.run_id)
