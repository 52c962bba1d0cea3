"""The rows of a run: their conversion and insertion, its journal, its callback, and the approvals it waits for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.idempotency import RequestKey
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.approvals import Resumption
from mnemesh_orchestrator.model.batches import BatchDraft
from mnemesh_orchestrator.model.events import DurableBody, JournalEntry, Lease, RunEvent, UnfinishedDecision
from mnemesh_orchestrator.model.groups import GroupPlan, TranscriptRange
from mnemesh_orchestrator.model.inputs import CallbackResult, InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import Lineage, MemberApproval, Run, RunError, RunStatus, StopReason
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.tables import approvals, callbacks, events, runs

_ROOTS: Final[sa.BindParameter[Any]] = sa.bindparam("p_ids", expanding=True)
_first: Final = (
    sa.select(runs.c.id.label("root"), runs.c.id.label("id")).where(runs.c.id.in_(_ROOTS)).cte("tree", recursive=True)
)
_child: Final = runs.alias("child")
_TREE: Final = _first.union(sa.select(_first.c.root, _child.c.id).join(_first, _child.c.parent_run_id == _first.c.id))
"""Each run of `p_ids` as `root`, with itself and the runs that it started, directly or through others."""
_IS_PENDING: Final = sa.text("approvals.state = 'pending'")  # exactly the predicate of the partial indexes
_WAITS: Final = (
    sa.select(
        runs,
        _TREE.c.root,
        approvals.c.id.label("approval_id"),
        approvals.c.run_id.label("asking_run_id"),
    )
    .join(_TREE, _TREE.c.id == runs.c.id)
    .join(approvals, approvals.c.conversation_id == runs.c.conversation_id)
    .where(
        _IS_PENDING,
        # The run asked, or it waits in the queue behind the approval.
        sa.or_(approvals.c.run_id == runs.c.id, runs.c.status == RunStatus.CREATED),
    )
    .order_by(runs.c.creation_number)
)
_COUNT_EVENTS: Final = (
    sa.select(sa.func.count())
    .select_from(events)
    .join(_TREE, _TREE.c.id == events.c.run_id)
    .where(_TREE.c.id != _TREE.c.root)
)


@dataclass(frozen=True, slots=True)
class _Document:
    """The values of a run that do not change."""

    input: tuple[InputMessage, ...]
    config: RunConfig
    takes_up: tuple[str, ...] = ()
    resumes: Resumption | None = None
    shown_inputs: int = 0
    plan: GroupPlan | None = None
    lineage: Lineage | None = None
    """None is that of a client's run."""
    transcript: TranscriptRange | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The values of a run that are known at its end."""

    usage: Usage
    step_count: int
    last_sequence: int
    completed_at: datetime
    error: RunError | None = None
    first_token_ms: int | None = None
    total_ms: int | None = None
    child_run_ids: tuple[str, ...] = ()


_BY_CLIENT = Lineage()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODE = msgspec.json.Encoder().encode
_DOCUMENT = msgspec.json.Decoder(_Document)
_OUTCOME = msgspec.json.Decoder(_Outcome)
_ENTRY = msgspec.json.Decoder(JournalEntry)
_BODY = msgspec.json.Decoder(DurableBody)


def microseconds(time: datetime) -> int:
    """Returns the microseconds from 1970 to a time."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def run_row(key: RequestKey | None, run: Run, queue_number: int) -> dict[str, Any]:
    """Returns the row of a new run."""
    return {
        "id": run.id,
        "organization_id": run.organization_id,
        "subject_id": run.subject_id,
        "agent_id": run.agent_id,
        "conversation_id": run.conversation_id,
        "group_id": run.group_id,
        "parent_run_id": run.lineage.parent_run_id,
        "origin": run.lineage.origin,
        "status": run.status,
        "background": run.background,
        "claims": int(run.status is RunStatus.RUNNING),
        "queue_number": queue_number,
        "request_method": key and key.method,
        "request_id": key and key.request_id,
        "request_fingerprint": key and key.fingerprint,
        "first_run_id": run.first_run_id if run.retried_run_ids else None,
        "batch_id": run.batch_id,
        "pool": run.pool,
        "document": encode_document(run),
        "created_at": run.created_at,
        "updated_at": run.updated_at,
    }


def encode_document(run: Run) -> bytes:
    """Returns the document of a run: the values that do not change once it has begun."""
    lineage = None if run.lineage == _BY_CLIENT else run.lineage
    return _ENCODE(
        _Document(
            run.input,
            run.config,
            run.retried_run_ids,
            run.resumes,
            run.shown_inputs,
            run.plan,
            lineage,
            run.transcript,
        )
    )


def decode_run(row: Any) -> Run:
    """Returns the run of a row of `runs`."""
    fixed = _DOCUMENT.decode(row.document)
    run = Run(
        id=row.id,
        organization_id=row.organization_id,
        subject_id=row.subject_id,
        agent_id=row.agent_id,
        conversation_id=row.conversation_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        input=fixed.input,
        config=fixed.config,
        retried_run_ids=fixed.takes_up,
        resumes=fixed.resumes,
        shown_inputs=fixed.shown_inputs,
        last_sequence=fixed.shown_inputs,
        group_id=row.group_id,
        plan=fixed.plan,
        lineage=fixed.lineage or _BY_CLIENT,
        transcript=fixed.transcript,
        input_unrecorded=row.input_unrecorded,
        batch_id=row.batch_id,
        status=RunStatus(row.status),
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        background=row.background,
    )
    if row.outcome is None:
        return run
    end = _OUTCOME.decode(row.outcome)
    return replace(
        run,
        usage=end.usage,
        step_count=end.step_count,
        last_sequence=end.last_sequence,
        completed_at=end.completed_at,
        error=end.error,
        first_token_ms=end.first_token_ms,
        total_ms=end.total_ms,
        child_run_ids=end.child_run_ids,
    )


def ended_values(run: Run) -> dict[str, Any]:
    """Returns the parameters of the statement that ends a run."""
    if run.completed_at is None:
        raise ValueError("an ended run has a completion time")
    outcome = _Outcome(
        run.usage,
        run.step_count,
        run.last_sequence,
        run.completed_at,
        run.error,
        run.first_token_ms,
        run.total_ms,
        run.child_run_ids,
    )
    return {
        "p_id": run.id,
        "new_status": run.status,
        "new_stop_reason": run.stop_reason,
        "new_outcome": _ENCODE(outcome),
        "new_cost_nano_usd": run.usage.cost_nano_usd,
        "new_updated_at": run.completed_at,
        "new_input_unrecorded": run.input_unrecorded,
    }


def entry_row(lease: Lease, entry: JournalEntry) -> dict[str, Any]:
    """Returns the row of a journal entry."""
    return {
        "run_id": lease.run_id,
        "step_id": entry.step_id,
        "kind": entry.kind,
        "ordinal": entry.ordinal,
        "epoch": lease.epoch,
        "entry": _ENCODE(entry),
    }


def event_row(event: RunEvent) -> dict[str, Any]:
    """Returns the row of a durable event."""
    return {
        "run_id": event.run_id,
        "sequence": event.sequence,
        "step_id": event.step_id,
        "body": _ENCODE(event.body),
        "created_at": event.created_at,
    }


def decode_entry(document: bytes) -> JournalEntry:
    """Returns the journal entry of a document."""
    return _ENTRY.decode(document)


def decode_event(row: Any) -> RunEvent:
    """Returns the event of a row of `events`."""
    return RunEvent(row.run_id, row.created_at, _BODY.decode(row.body), row.sequence, row.step_id)


def insert_callback(conn: sa.Connection, target: Run | BatchDraft, url: str) -> None:
    """Inserts the callback of a run or of a batch."""
    row = {
        "target_id": target.id,
        "organization_id": target.organization_id,
        "subject_id": target.subject_id,
        "url": url,
        "attempts": 0,
        "due_at": target.created_at,
    }
    conn.execute(callbacks.insert().values(row))


def callbacks_of(conn: sa.Connection, target_ids: Sequence[str]) -> dict[str, CallbackResult]:
    """Returns the callbacks of runs or batches by their ids."""
    if not target_ids:
        return {}
    query = sa.select(callbacks).where(callbacks.c.target_id.in_(target_ids))
    return {row.target_id: _callback_result(row) for row in conn.execute(query)}


def _callback_result(row: Any) -> CallbackResult:
    return CallbackResult(row.url, row.sent_at, row.status, row.error)


def delete_callbacks(conn: sa.Connection, target_ids: Sequence[str]) -> None:
    """Deletes the callbacks of runs or batches that are being deleted."""
    conn.execute(callbacks.delete().where(callbacks.c.target_id.in_(target_ids)))


def insert_run(conn: sa.Connection, key: RequestKey | None, run: Run, queue_number: int) -> None:
    """Inserts a run with a number in the queue of its conversation, the otids of its input, and its callback."""
    order = {"p_organization": run.organization_id, "p_microseconds": microseconds(run.created_at)}
    sql.INSERT_RUN.change(conn, run_row(key, run, queue_number) | order)
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
    if run.config.callback_url is not None:
        insert_callback(conn, run, run.config.callback_url)


def approvals_awaited(conn: sa.Connection, run_ids: Sequence[str]) -> dict[str, tuple[MemberApproval, ...]]:
    """Returns the pending approvals that runs wait for, by run: those of the runs that they started and wait for."""
    found: dict[str, tuple[MemberApproval, ...]] = {}
    for row in conn.execute(_WAITS, {"p_ids": list(run_ids)}) if run_ids else ():
        if any(ancestor.run_id == row.root for ancestor in decode_run(row).lineage.ancestors):
            approval = MemberApproval(row.agent_id, row.asking_run_id, row.approval_id)
            if approval not in found.get(row.root, ()):
                found[row.root] = (*found.get(row.root, ()), approval)
    return found


def progress_of_children(conn: sa.Connection, run_id: str) -> int:
    """Returns the number of events of the runs that a run started, directly or through others."""
    return int(conn.execute(_COUNT_EVENTS, {"p_ids": [run_id]}).scalar_one())


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
    run_id = approval_statements.decided_by(conn, conversation_id, approval_id)
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
