"""The journal and the durable events of runs."""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from mnemesh_orchestrator.model.claims import UnfinishedDecision
from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.store.sql import approvals
from mnemesh_orchestrator.store.sql import turn_statements as sql
from mnemesh_orchestrator.store.sql.run_rows import decode_entry, decode_run, ended_values, entry_row, event_row
from mnemesh_orchestrator.store.sql.run_waits import progress_of_children
from mnemesh_orchestrator.store.sql.tables import runs


def record_run(
    conn: sa.Connection, lease: Lease, entries: Sequence[JournalEntry], new_events: Sequence[RunEvent]
) -> None:
    """Stores journal entries and durable events of a run."""
    if entries:
        sql.INSERT_ENTRY.change_each(conn, [entry_row(lease, entry) for entry in entries])
    if new_events:
        sql.INSERT_EVENT.change_each(conn, [event_row(event) for event in new_events])


def forget_journal(conn: sa.Connection, run: Run) -> None:
    """Deletes the journal of an ended run.

    A failed run keeps the entries of the decision that it may not have executed; see `unfinished_decision`. A run of a
    group that did not complete keeps those of its turns, which a retry does not repeat.
    """
    if run.plan is not None and run.status is not RunStatus.COMPLETED:
        return
    if run.resumes is None:
        sql.FORGET_JOURNAL.change(conn, {"p_run": run.id})
        return
    step = {"p_step": run.resumes.asked.step_id}
    if run.status is RunStatus.FAILED:
        conn.execute(sql.KEEP_JOURNAL_OF_STEP, {"p_run": run.id, **step})
        return
    sql.FORGET_JOURNAL.change(conn, {"p_run": run.id})
    conn.execute(sql.FORGET_JOURNAL_OF_STEP, {"p_conversation": run.conversation_id, **step})


def unfinished_decision(conn: sa.Connection, conversation_id: str, approval_id: str) -> UnfinishedDecision | None:
    """See RunStore.unfinished_decision."""
    run_id = approvals.decided_by(conn, conversation_id, approval_id)
    row = conn.execute(sa.select(runs).where(runs.c.id == run_id)).first()
    resumption = None if row is None else decode_run(row).resumes
    if resumption is None:
        return None
    parameters = {"p_conversation": conversation_id, "p_step": resumption.asked.step_id}
    rows = conn.execute(sql.JOURNAL_OF_STEP, parameters).scalars().all()
    return UnfinishedDecision(resumption, tuple(decode_entry(row) for row in rows))


def is_recorded(
    conn: sa.Connection, run_id: str, entries: Sequence[JournalEntry], new_events: Sequence[RunEvent]
) -> bool:
    """Returns whether a run has journal entries with the keys of these; without entries, whether it has the events."""
    if not entries and new_events:
        return newest_event(conn, run_id) >= (new_events[-1].sequence or 0)
    for entry in entries:
        key = {"p_run": run_id, "p_step": entry.step_id, "p_kind": entry.kind, "p_ordinal": entry.ordinal}
        if conn.execute(sql.ENTRY_EXISTS, key).first() is None:
            return False
    return bool(entries)


def find_end(conn: sa.Connection, run: Run) -> Run | None:
    """Returns a run as it is stored, with the runs that its end started; None if it is not stored with this end."""
    row = conn.execute(sa.select(runs).where(runs.c.id == run.id)).first()
    if row is None or row.outcome is None:
        return None
    stored = decode_run(row)
    own = ended_values(replace(stored, child_run_ids=run.child_run_ids))
    if (own["new_status"], own["new_outcome"]) != (run.status, ended_values(run)["new_outcome"]):
        return None
    return replace(run, child_run_ids=stored.child_run_ids)


def progress(conn: sa.Connection, run_id: str) -> int:
    """Returns a number that grows with every journal entry and durable event of an unfinished run, and with every
    durable event of the runs that it started.
    """
    entries = int(conn.execute(sql.COUNT_ENTRIES, {"p_run": run_id}).scalar_one())
    return newest_event(conn, run_id) + entries + progress_of_children(conn, run_id)


def newest_event(conn: sa.Connection, run_id: str) -> int:
    """Returns the sequence number of the newest durable event of a run, or 0."""
    return conn.execute(sql.NEWEST_EVENT, {"p_run": run_id}).scalar() or 0
