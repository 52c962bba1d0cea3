"""Rows of runs, journal entries and events. The constant and the final values of a run are JSON documents."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from mnemesh_kit.idempotency import RequestKey
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.approvals import Resumption
from mnemesh_orchestrator.model.events import DurableBody, RunEvent
from mnemesh_orchestrator.model.groups import GroupPlan
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.lineage import Lineage
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import Run, RunError, RunStatus, StopReason
from mnemesh_orchestrator.model.sleeptime import TranscriptRange


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
