"""Steps, their traces, and the feedback of people. Steps are JSON documents; traces are compressed texts."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.runs import SharedRequest, Step, StepFilter, StepTrace
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.tables import request_ledger, step_tags, step_traces, steps

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
    """Returns the step of a document."""
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
        row: the row.
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
        """Returns the request to the model at a step and its response.

        Raises:
            NotFound: The step does not exist, or its trace was deleted.
        """

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
            conn.execute(sql.DELETE_STEP, [{"p_id": step.id} for step in new_steps])
        sql.INSERT_STEP.change_each(conn, [step_row(step) for step in new_steps])
    if traces:
        if not replaces:
            conn.execute(sql.DELETE_TRACE, [{"p_id": trace.step_id} for trace in traces])
        sql.INSERT_TRACE.change_each(conn, [trace_row(run_id, trace) for trace in traces])


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
    conditions = [
        column == wanted
        for column, wanted in (
            (steps.c.run_id, filter_.run_id),
            (steps.c.agent_id, filter_.agent_id),
            (steps.c.model, filter_.model),
            (steps.c.feedback, filter_.feedback),
            (steps.c.trace_id, filter_.trace_id),
        )
        if wanted is not None
    ]
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
