"""The rows of a run: itself, its journal, its callback, the approvals it waits for, its steps and their traces."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.time import Clock
from mnemesh_types.agents import RunError
from mnemesh_types.usage import Usage
from msgspec import structs

from mnemesh_orchestrator.model.conversations import Resumption
from mnemesh_orchestrator.model.events import DurableBody, JournalEntry, Lease, RunEvent, UnfinishedDecision
from mnemesh_orchestrator.model.groups import GroupPlan, TranscriptRange
from mnemesh_orchestrator.model.inputs import CallbackResult, InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import (
    BatchDraft,
    Lineage,
    MemberApproval,
    Run,
    RunPool,
    RunStatus,
    SharedRequest,
    Step,
    StepFilter,
    StepTrace,
    StopReason,
)
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.tables import (
    approvals,
    callbacks,
    events,
    request_ledger,
    run_batches,
    runs,
    step_tags,
    step_traces,
    steps,
)

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


class _Document(msgspec.Struct, frozen=True):
    """The values of a run that do not change, by the names of its fields."""

    input: tuple[InputMessage, ...]
    config: RunConfig
    retried_run_ids: tuple[str, ...] = ()
    resumes: Resumption | None = None
    shown_inputs: int = 0
    plan: GroupPlan | None = None
    transcript: TranscriptRange | None = None
    lineage: Lineage | None = None
    """None is that of a client's run."""


class _Outcome(msgspec.Struct, frozen=True):
    """The values of a run that are known at its end, by the names of its fields."""

    usage: Usage
    step_count: int
    last_sequence: int
    completed_at: datetime | None
    error: RunError | None = None
    first_token_ms: int | None = None
    total_ms: int | None = None
    child_run_ids: tuple[str, ...] = ()


_FIXED = attrgetter(*(name for name in _Document.__struct_fields__ if name != "lineage"))
_ENDED = attrgetter(*_Outcome.__struct_fields__)
_BY_CLIENT = Lineage()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODE = msgspec.json.Encoder().encode
_DOCUMENT = msgspec.json.Decoder(_Document)
_OUTCOME = msgspec.json.Decoder(_Outcome)
_ENTRY = msgspec.json.Decoder(JournalEntry)
_BODY = msgspec.json.Decoder(DurableBody)


def microseconds(time: datetime) -> int:
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
    return _ENCODE(_Document(*_FIXED(run), lineage=lineage))  # type: ignore[misc]


def decode_run(row: Any) -> Run:
    fixed = structs.asdict(_DOCUMENT.decode(row.document))
    run = Run(
        **{**fixed, "lineage": fixed["lineage"] or _BY_CLIENT},
        id=row.id,
        organization_id=row.organization_id,
        subject_id=row.subject_id,
        agent_id=row.agent_id,
        conversation_id=row.conversation_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        last_sequence=fixed["shown_inputs"],
        group_id=row.group_id,
        input_unrecorded=row.input_unrecorded,
        batch_id=row.batch_id,
        status=RunStatus(row.status),
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        background=row.background,
        is_limited=row.pool == RunPool.CLIENT,
    )
    return run if row.outcome is None else replace(run, **structs.asdict(_OUTCOME.decode(row.outcome)))


def ended_values(run: Run) -> dict[str, Any]:
    """Returns the parameters of the statement that ends a run."""
    if run.completed_at is None:
        raise ValueError("an ended run has a completion time")
    return {
        "p_id": run.id,
        "new_status": run.status,
        "new_stop_reason": run.stop_reason,
        "new_outcome": _ENCODE(_Outcome(*_ENDED(run))),
        "new_cost_nano_usd": run.usage.cost_nano_usd,
        "new_updated_at": run.completed_at,
        "new_input_unrecorded": run.input_unrecorded,
    }


def entry_row(lease: Lease, entry: JournalEntry) -> dict[str, Any]:
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
    return _ENTRY.decode(document)


def decode_event(row: Any) -> RunEvent:
    return RunEvent(row.run_id, row.created_at, _BODY.decode(row.body), row.sequence, row.step_id)


def insert_callback(conn: sa.Connection, target: Run | BatchDraft, url: str) -> None:
    row = {
        "target_id": target.id,
        "organization_id": target.organization_id,
        "subject_id": target.subject_id,
        "url": url,
        "attempts": 0,
        "due_at": target.created_at,
        "created_at": target.created_at,
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


def delete_empty_batches(conn: sa.Connection, batch_ids: Sequence[str]) -> None:
    """Deletes those of some batches whose last run was deleted."""
    with_runs = sa.select(runs.c.batch_id).where(runs.c.batch_id.in_(batch_ids))
    empty = set(batch_ids) - set(conn.execute(with_runs.distinct()).scalars())
    if empty:
        conn.execute(run_batches.delete().where(run_batches.c.id.in_(empty)))
        delete_callbacks(conn, list(empty))


def insert_run(conn: sa.Connection, key: RequestKey | None, run: Run, queue_number: int) -> None:
    """Inserts a run with a number in the queue of its conversation, the otids of its input, and its callback."""
    order = {"p_organization": run.organization_id, "p_microseconds": microseconds(run.created_at)}
    sql.INSERT_RUN.send(conn, run_row(key, run, queue_number) | order)
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
    sql.INSERT_OTID.send_each(conn, otids)
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


def record_run(
    conn: sa.Connection, lease: Lease, entries: Sequence[JournalEntry], new_events: Sequence[RunEvent]
) -> None:
    """Stores journal entries and durable events of a run."""
    sql.INSERT_ENTRY.send_each(conn, [entry_row(lease, entry) for entry in entries])
    sql.INSERT_EVENT.send_each(conn, [event_row(event) for event in new_events])


def forget_journal(conn: sa.Connection, run: Run) -> None:
    """Deletes the journal of an ended run.

    A failed run keeps the entries of the decision that it may not have executed; see `unfinished_decision`. A run of a
    group that did not complete keeps those of its turns, which a retry does not repeat.
    """
    if run.plan is not None and run.status is not RunStatus.COMPLETED:
        return
    if run.resumes is None:
        sql.FORGET_JOURNAL.send(conn, {"p_run": run.id})
        return
    step = {"p_step": run.resumes.asked.step_id}
    if run.status is RunStatus.FAILED:
        conn.execute(sql.KEEP_JOURNAL_OF_STEP, {"p_run": run.id, **step})
        return
    sql.FORGET_JOURNAL.send(conn, {"p_run": run.id})
    conn.execute(sql.FORGET_JOURNAL_OF_STEP, {"p_conversation": run.conversation_id, **step})


def unfinished_decision(conn: sa.Connection, conversation_id: str, approval_id: str) -> UnfinishedDecision | None:
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
    return newest_event(conn, run_id) + entries + int(conn.execute(_COUNT_EVENTS, {"p_ids": [run_id]}).scalar_one())


def newest_event(conn: sa.Connection, run_id: str) -> int:
    """Returns the sequence number of the newest durable event of a run, or 0."""
    return conn.execute(sql.NEWEST_EVENT, {"p_run": run_id}).scalar() or 0


_STEP = msgspec.json.Decoder(Step)
_FAST = 1
"""The level of compression. Requests of a conversation are so similar that a higher level gains little."""

_SMALL = 4_096
_SMALL_WINDOW_BITS = 12
_SMALL_MEMORY_LEVEL = 5
"""Most contents fit into a small window. Preparing the default one takes ten times as long as compressing them."""

_DIFFERENCE = b"D"
"""The prefix of a request that is stored as a difference. Compressed texts start with another byte."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """A request without the parts that it shares with an earlier one."""

    shared: SharedRequest
    middle: str


_DECODE_DIFFERENCE = msgspec.msgpack.Decoder(_Difference).decode
encode_step = msgspec.json.Encoder().encode


def step_row(step: Step) -> dict[str, Any]:
    """Returns the row of an ended step. The parameter `p_run` finds the organization."""
    return {
        "id": step.id,
        "p_run": step.run_id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "number": step.number,
        "model": step.model,
        "trace_id": step.trace_id,
        "document": encode_step(step),
        "created_at": step.created_at,
    }


def decode_step(document: bytes) -> Step:
    return _STEP.decode(document)


def trace_row(run_id: str, trace: StepTrace) -> dict[str, Any]:
    """Returns a trace as a row of its run. A shared request is stored as its difference from the earlier one."""
    request, shared = trace.request, trace.shared
    if shared is None:
        stored = compressed(request)
    else:
        middle = request[shared.start : len(request) - shared.end]
        stored = _DIFFERENCE + _compress(msgspec.msgpack.encode(_Difference(shared, middle)))
    return {
        "step_id": trace.step_id,
        "run_id": run_id,
        "request": stored,
        "response": compressed(trace.response),
        "model_ms": trace.model_ms,
        "created_at": trace.created_at,
    }


def compressed(text: str) -> bytes:
    """Returns a text as it is stored."""
    return _compress(text.encode())


def _compress(content: bytes) -> bytes:
    if len(content) > _SMALL:
        return zlib.compress(content, _FAST)
    compressor = zlib.compressobj(_FAST, zlib.DEFLATED, _SMALL_WINDOW_BITS, _SMALL_MEMORY_LEVEL)
    return compressor.compress(content) + compressor.flush()


def earlier_step(row: Any) -> str | None:
    """Returns the step whose request the trace of a row needs; None if it is stored whole."""
    return _difference(row).shared.step_id if row.request.startswith(_DIFFERENCE) else None


def decode_trace(row: Any, earlier: Any = None) -> StepTrace:
    """Returns the trace of a row of `step_traces`.

    Args:
        earlier: the row of the step that `earlier_step` names.
    """
    if earlier is None:
        request = zlib.decompress(row.request).decode()
    else:
        known, difference = zlib.decompress(earlier.request).decode(), _difference(row)
        start, end = difference.shared.start, difference.shared.end
        request = known[:start] + difference.middle + known[len(known) - end :]
    return StepTrace(row.step_id, request, zlib.decompress(row.response).decode(), row.model_ms, row.created_at)


def _difference(row: Any) -> _Difference:
    return _DECODE_DIFFERENCE(zlib.decompress(row.request.removeprefix(_DIFFERENCE)))


class StepStore:
    """Ended steps. RunStore writes them.

    Example:
        >>> (await steps.get(organization_id, step_id)).status
        <StepStatus.SUCCESS: 'success'>
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._ledger = Ledger(database, request_ledger, clock)

    async def get(self, organization_id: str, step_id: str) -> Step:
        """Returns an ended step. Raises NotFound."""
        return await self._database.read(lambda conn: _step(conn, organization_id, step_id))

    async def list(self, organization_id: str, filter_: StepFilter, page: PageQuery) -> Page[Step]:
        """Returns a page of steps ordered by creation."""
        scope = steps.c.organization_id == organization_id
        query = sa.select(steps).where(scope, *_conditions(filter_))

        def read(conn: sa.Connection) -> Page[Step]:
            found = paginate(conn, query, page, key=steps.c.created_at, id=steps.c.id, scope=scope)
            return found.map(lambda row: decode_step(row.document))

        return await self._database.read(read)

    async def trace(self, organization_id: str, step_id: str) -> StepTrace:
        """Returns the request to the model at a step and its response."""

        def read(conn: sa.Connection) -> StepTrace | None:
            _step(conn, organization_id, step_id)
            return _trace(conn, _trace_row(conn, step_id))

        trace = await self._database.read(read)
        if trace is None:
            raise NotFound(f"No trace of step {step_id} is kept.", resource_id=step_id)
        return trace

    async def set_feedback(
        self, key: RequestKey | None, organization_id: str, step_id: str, feedback: str | None, tags: Sequence[str]
    ) -> Step:
        """Replaces the feedback and the tags of a step, and returns the step. Raises NotFound, RequestIdReused."""

        def effect(conn: sa.Connection) -> Sequence[str]:
            changed_step = replace(_step(conn, organization_id, step_id), feedback=feedback, tags=tuple(tags))
            changed = steps.update().where(steps.c.id == step_id)
            conn.execute(changed.values(document=encode_step(changed_step), feedback=feedback))
            conn.execute(step_tags.delete().where(step_tags.c.step_id == step_id))
            if tags:
                conn.execute(step_tags.insert(), [{"step_id": step_id, "tag": tag} for tag in tags])
            return (step_id,)

        return await self._ledger.write_and_read(key, effect, lambda conn, _: _step(conn, organization_id, step_id))

    async def purge_traces(self, before: datetime) -> int:
        """Deletes the traces that were written before a time. Returns their number."""
        is_old = step_traces.c.created_at < before
        runs = sa.select(step_traces.c.run_id).where(is_old)
        kept = sa.select(step_traces).where(~is_old, step_traces.c.run_id.in_(runs))

        def write(conn: sa.Connection) -> int:
            # Traces that stay are stored whole if they need the request of one that goes.
            for row in conn.execute(kept).all():
                if earlier_step(row) is not None and (trace := _trace(conn, row)) is not None:
                    whole = step_traces.update().where(step_traces.c.step_id == row.step_id)
                    conn.execute(whole.values(request=compressed(trace.request)))
            return conn.execute(step_traces.delete().where(is_old)).rowcount

        return await self._database.write(write)


def record_steps(conn: sa.Connection, new_steps: Sequence[Step], traces: Sequence[StepTrace], run_id: str) -> None:
    """Writes concluded steps and traces. A step or trace that exists is replaced."""
    replaces = conn.dialect.name == "sqlite"
    if new_steps:
        if not replaces:
            sql.DELETE_STEP.send_each(conn, [{"p_id": step.id} for step in new_steps])
        sql.INSERT_STEP.send_each(conn, [step_row(step) for step in new_steps])
    if traces:
        if not replaces:
            sql.DELETE_TRACE.send_each(conn, [{"p_id": trace.step_id} for trace in traces])
        sql.INSERT_TRACE.send_each(conn, [trace_row(run_id, trace) for trace in traces])


def stored_steps(conn: sa.Connection, step_ids: Sequence[str]) -> tuple[Step, ...]:
    """Returns those of some steps that are stored."""
    documents = conn.execute(sa.select(steps.c.document).where(steps.c.id.in_(step_ids))).scalars()
    return tuple(map(decode_step, documents))


def _trace_row(conn: sa.Connection, step_id: str) -> Any:
    return conn.execute(sa.select(step_traces).where(step_traces.c.step_id == step_id)).first()


def _trace(conn: sa.Connection, row: Any) -> StepTrace | None:
    """Returns the trace of a row; None without a row, or if the request that it needs is not kept."""
    if row is None:
        return None
    step_id = earlier_step(row)
    earlier = _trace_row(conn, step_id) if step_id is not None else None
    return None if step_id is not None and earlier is None else decode_trace(row, earlier)


def _step(conn: sa.Connection, organization_id: str, step_id: str) -> Step:
    query = sa.select(steps.c.document).where(steps.c.organization_id == organization_id, steps.c.id == step_id)
    document = conn.execute(query).scalar()
    if document is None:
        raise NotFound(f"There is no step {step_id}.", resource_id=step_id)
    return decode_step(document)


def _conditions(filter_: StepFilter) -> list[sa.ColumnElement[bool]]:
    conditions = matching(
        (
            (steps.c.run_id, filter_.run_id),
            (steps.c.agent_id, filter_.agent_id),
            (steps.c.model, filter_.model),
            (steps.c.feedback, filter_.feedback),
            (steps.c.trace_id, filter_.trace_id),
        )
    )
    if filter_.tags_any:
        tagged = sa.select(step_tags.c.step_id).where(step_tags.c.tag.in_(filter_.tags_any))
        conditions.append(steps.c.id.in_(tagged))
    if filter_.start is not None:
        conditions.append(steps.c.created_at >= filter_.start)
    if filter_.end is not None:
        conditions.append(steps.c.created_at < filter_.end)
    if filter_.has_feedback is not None:
        conditions.append(steps.c.feedback.is_not(None) if filter_.has_feedback else steps.c.feedback.is_(None))
    return conditions
