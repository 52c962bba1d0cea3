"""The journal and the durable events of runs."""

from collections.abc import Sequence

import sqlalchemy as sa

from mnemesh_orchestrator.model.claims import UnfinishedDecision
from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.store.sql import approvals
from mnemesh_orchestrator.store.sql import turn_statements as sql
from mnemesh_orchestrator.store.sql.run_rows import decode_entry, decode_run, ended_values, entry_row, event_row
from mnemesh_orchestrator.store.sql.tables import runs


def record_run(
    conn: sa.Connection, lease: Lease, entries: Sequence[JournalEntry], new_events: Sequence[RunEvent]
) -> None:
    """Stores journal entries and durable events of a run."""
    if entries:
        conn.execute(sql.INSERT_ENTRY, [entry_row(lease, entry) for entry in entries])
    if new_events:
        conn.execute(sql.INSERT_EVENT, [event_row(event) for event in new_events])


def forget_journal(conn: sa.Connection, run: Run) -> None:
    """Deletes the journal of an ended run.

    A failed run keeps the entries of the decision that it may not have executed; see `unfinished_decision`.
    """
    if run.resumes is None:
        conn.execute(sql.FORGET_JOURNAL, {"p_run": run.id})
        return
    step = {"p_step": run.resumes.asked.step_id}
    if run.status is RunStatus.FAILED:
        conn.execute(sql.KEEP_JOURNAL_OF_STEP, {"p_run": run.id, **step})
        return
    conn.execute(sql.FORGET_JOURNAL, {"p_run": run.id})
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


def has_entries(conn: sa.Connection, run_id: str, entries: Sequence[JournalEntry]) -> bool:
    """Returns whether a run has journal entries with the keys of these."""
    for entry in entries:
        key = {"p_run": run_id, "p_step": entry.step_id, "p_kind": entry.kind, "p_ordinal": entry.ordinal}
        if conn.execute(sql.ENTRY_EXISTS, key).first() is None:
            return False
    return bool(entries)


def has_ended(conn: sa.Connection, run: Run) -> bool:
    """Returns whether a run is stored with exactly this end."""
    values = ended_values(run)
    row = conn.execute(sa.select(runs.c.status, runs.c.outcome).where(runs.c.id == run.id)).first()
    return row is not None and (row.status, row.outcome) == (values["new_status"], values["new_outcome"])


def progress(conn: sa.Connection, run_id: str) -> int:
    """Returns a number that grows with every journal entry and durable event of an unfinished run."""
    return newest_event(conn, run_id) + conn.execute(sql.COUNT_ENTRIES, {"p_run": run_id}).scalar_one()


def newest_event(conn: sa.Connection, run_id: str) -> int:
    """Returns the sequence number of the newest durable event of a run, or 0."""
    return conn.execute(sql.NEWEST_EVENT, {"p_run": run_id}).scalar() or 0
