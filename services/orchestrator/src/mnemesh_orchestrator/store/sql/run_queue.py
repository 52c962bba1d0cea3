"""The queue of each conversation: new runs, and claims of the run whose turn it is."""

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.errors import NoPendingApproval
from mnemesh_orchestrator.model.approvals import ApprovalAnswer
from mnemesh_orchestrator.model.claims import Claim, StartedRun
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.store.sql import approvals
from mnemesh_orchestrator.store.sql import turn_statements as sql
from mnemesh_orchestrator.store.sql.agents import decode_agent
from mnemesh_orchestrator.store.sql.conversation_leases import (
    busy_error,
    find_conversation,
    first_unfinished_run,
    is_behind_wait,
    missing_error,
    take_lease,
)
from mnemesh_orchestrator.store.sql.conversation_rows import decode_conversation
from mnemesh_orchestrator.store.sql.lease_clock import LeaseClock
from mnemesh_orchestrator.store.sql.run_journal import newest_event, progress
from mnemesh_orchestrator.store.sql.run_repeats import find_repeated_run, require_newest_attempt
from mnemesh_orchestrator.store.sql.run_rows import decode_run, microseconds, run_row
from mnemesh_orchestrator.store.sql.tables import runs


def start_run(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    key: RequestKey | None,
    run: Run,
    instance_id: str,
    *,
    reject_busy: bool,
    answer: ApprovalAnswer | None,
) -> StartedRun:
    """See RunStore.start."""
    before = find_repeated_run(conn, key, run)
    if before is not None:
        return StartedRun(before, replayed=True)
    if run.retried_run_ids:
        require_newest_attempt(conn, run)
    conversation = find_conversation(
        conn, lease_clock, run.organization_id, run.agent_id, run.conversation_id, sql.QUEUED_CONVERSATION
    )
    if conversation is None:
        raise missing_error(conn, run.organization_id, run.agent_id, run.conversation_id)
    if answer is not None:
        return _answer(conn, lease_clock, key, run, instance_id, conversation, answer)
    approvals.require_none(conversation.pending_approval)
    ahead = None if conversation.first_unfinished is None else first_unfinished_run(conn, run.conversation_id)
    is_busy = ahead is not None or conversation.held or conversation.next_wait is not None
    if is_busy and reject_busy and not _is_held_by_ended_run(conn, conversation, ahead):
        raise busy_error(run.conversation_id, ahead)
    number = conversation.next_queue_number
    if is_busy:
        _insert_run(conn, key, run, number)
        conn.execute(sql.ADVANCE_QUEUE, {"p_id": run.conversation_id, "new_next_queue_number": number + 1})
        return StartedRun(run)
    return _claim_new(conn, lease_clock, key, run, instance_id, conversation, number)


def _is_held_by_ended_run(conn: sa.Connection, conversation: Any, ahead: Any) -> bool:
    """Returns whether nothing but the compaction that follows an ended run holds the conversation."""
    if ahead is not None or conversation.next_wait is not None:
        return False
    status = conn.execute(sa.select(runs.c.status).where(runs.c.id == conversation.lease_run_id)).scalar()
    return status is not None and RunStatus(status).ended


def claim_next_run(
    conn: sa.Connection, lease_clock: LeaseClock, conversation_id: str, instance_id: str
) -> Claim | None:
    """See RunStore.claim_next."""
    first = first_unfinished_run(conn, conversation_id)
    if first is None:
        return None
    conversation = find_conversation(conn, lease_clock, first.organization_id, first.agent_id, conversation_id)
    if conversation is None or (conversation.held and conversation.lease_owner != instance_id):
        return None
    if first.status == RunStatus.CREATED and is_behind_wait(conversation, first.queue_number):
        return None
    if approvals.pending_id(conn, conversation_id) is not None:
        return None
    lease = take_lease(conn, lease_clock, conversation, first.id, instance_id, conversation.next_queue_number)
    resumed = first.status == RunStatus.RUNNING
    reached = progress(conn, first.id) if resumed else 0
    stalled = first.stalled_claims + 1 if resumed and reached <= first.progress else 0
    conn.execute(sql.MARK_RUNNING, {"p_id": first.id, "new_stalled_claims": stalled, "new_progress": reached})
    waiting = decode_run(first)
    newest = max(waiting.last_sequence, newest_event(conn, first.id))
    run = replace(waiting, status=RunStatus.RUNNING, last_sequence=newest)
    agent, thread = decode_agent(conversation), decode_conversation(conversation.thread)
    return Claim(run, agent, thread, lease, resumed, first.cancel_requested, first.claims, stalled)


def _claim_new(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    key: RequestKey | None,
    run: Run,
    instance_id: str,
    conversation: Any,
    number: int,
) -> StartedRun:
    running = replace(run, status=RunStatus.RUNNING)
    _insert_run(conn, key, running, number)
    lease = take_lease(
        conn, lease_clock, conversation, run.id, instance_id, max(number + 1, conversation.next_queue_number)
    )
    return StartedRun(
        running, claim=Claim(running, decode_agent(conversation), decode_conversation(conversation.thread), lease)
    )


def _answer(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    key: RequestKey | None,
    run: Run,
    instance_id: str,
    conversation: Any,
    answer: ApprovalAnswer,
) -> StartedRun:
    """Stores the run that answers an approval, before the runs that wait."""
    decided = approvals.decide(conn, run, answer)
    if decided.repeats_run_id is not None:
        before = conn.execute(sa.select(runs).where(runs.c.id == decided.repeats_run_id)).first()
        if before is None:
            raise NoPendingApproval("The approval was decided before, and the run that decided it was deleted.")
        return StartedRun(decode_run(before), replayed=True)
    ahead = first_unfinished_run(conn, run.conversation_id)
    if conversation.held:
        raise busy_error(run.conversation_id, ahead)
    number = conversation.next_queue_number if ahead is None else ahead.queue_number - 1
    resuming = replace(run, config=decided.config, resumes=decided.resumption)
    return _claim_new(conn, lease_clock, key, resuming, instance_id, conversation, number)


def _insert_run(conn: sa.Connection, key: RequestKey | None, run: Run, queue_number: int) -> None:
    order = {"p_organization": run.organization_id, "p_microseconds": microseconds(run.created_at)}
    conn.execute(sql.INSERT_RUN, run_row(key, run, queue_number) | order)
    otids = [
        {
            "conversation_id": run.conversation_id,
            "otid": item.otid,
            "run_id": run.id,
            "message_hash": item.message_hash,
            "input_hash": item.input_hash,
        }
        for item in run.sent
        if item.otid
    ]
    if otids:
        conn.execute(sql.INSERT_OTID, otids)
