"""The rows of conversations as locks: leases, queues of runs, and their errors."""

from typing import Any

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.store.sql import turn_statements as sql
from mnemesh_orchestrator.store.sql.agent_rows import active
from mnemesh_orchestrator.store.sql.conversation_rows import conversation_missing
from mnemesh_orchestrator.store.sql.lease_clock import LeaseClock


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
) -> Any:
    """Returns the row of a conversation, or None if its agent or itself is not ACTIVE.

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
    return statement.first(conn, parameters | lease_clock.now)


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
    sql.TAKE_LEASE.change(conn, values | lease_clock.expiry)
    return lease


def first_unfinished_run(conn: sa.Connection, conversation_id: str) -> Any:
    """Returns the row of the first unfinished run of a conversation, or None."""
    return sql.FIRST_UNFINISHED.first(conn, {"p_conversation": conversation_id})


def has_unfinished_run(conn: sa.Connection, conversation_id: str) -> bool:
    """Returns whether a conversation has an unfinished run."""
    return sql.FIRST_UNFINISHED_ID.first(conn, {"p_conversation": conversation_id}) is not None


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
