"""The rows of conversations as locks: their leases, their queues of runs, and the errors of both."""

from typing import Any

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.store.sql import turn_statements as sql
from mnemesh_orchestrator.store.sql.agents import active
from mnemesh_orchestrator.store.sql.conversation_rows import conversation_missing
from mnemesh_orchestrator.store.sql.lease_clock import LeaseClock


def is_behind_wait(conversation: Any, queue_number: int) -> bool:
    """Whether work that is no run has an earlier position in the queue of a conversation."""
    return conversation.next_wait is not None and conversation.next_wait < queue_number


def find_conversation(
    conn: sa.Connection, lease_clock: LeaseClock, organization_id: str, agent_id: str, conversation_id: str
) -> Any:
    """See `statements.PLACE`; None where the agent or conversation is not there, or is not ACTIVE."""
    asked = {"p_organization": organization_id, "p_agent": agent_id, "p_conversation": conversation_id}
    return conn.execute(sql.LOCKED_CONVERSATION, asked | lease_clock.now).first()


def missing_error(conn: sa.Connection, organization_id: str, agent_id: str, conversation_id: str) -> NotFound:
    """Which of the two is not there."""
    try:
        active(conn, organization_id, agent_id)
    except NotFound as error:
        return error
    return conversation_missing(conversation_id)


def take_lease(
    conn: sa.Connection, lease_clock: LeaseClock, conversation: Any, run_id: str, owner: str, next_queue_number: int
) -> Lease:
    """Gives a conversation's lease to `owner`, under a new epoch."""
    lease = Lease(run_id, conversation.conversation_id, owner, conversation.epoch + 1)
    taken = {
        "p_id": lease.conversation_id,
        "new_epoch": lease.epoch,
        "new_lease_owner": owner,
        "new_lease_run_id": run_id,
        "new_next_queue_number": next_queue_number,
    }
    conn.execute(sql.TAKE_LEASE, taken | lease_clock.expiry)
    return lease


def first_unfinished_run(conn: sa.Connection, conversation_id: str) -> Any:
    """The row of the run whose turn it is, or None."""
    return conn.execute(sql.FIRST_UNFINISHED, {"p_conversation": conversation_id}).first()


def busy_error(conversation_id: str, ahead: Any = None) -> ConversationBusy:
    """The error for a conversation that is taken: by the run of a row, or by work that is no run."""
    if ahead is not None:
        return ConversationBusy(f"Run {ahead.id} holds the conversation.", run_id=ahead.id)
    return ConversationBusy("The conversation is being changed.", conversation_id=conversation_id)


def lease_parameters(lease: Lease) -> dict[str, Any]:
    """The parameters of a statement that takes effect while a lease holds."""
    return {"p_conversation": lease.conversation_id, "p_epoch": lease.epoch, "p_run": lease.run_id}


def require_lease(lease: Lease, updated: sa.CursorResult[Any]) -> None:
    """Fails where such a statement took no effect."""
    if updated.rowcount == 0:
        raise LeaseLost(
            "Another holder took the conversation over.",
            conversation_id=lease.conversation_id,
            epoch=str(lease.epoch),
        )
