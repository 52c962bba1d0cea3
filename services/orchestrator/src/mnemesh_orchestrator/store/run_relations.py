"""Runs that belong together: those that runs started, batches, and those that are deleted."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate

from mnemesh_orchestrator.model.inputs import CallbackResult
from mnemesh_orchestrator.model.runs import (
    Batch,
    BatchDraft,
    ChildRun,
    Continuation,
    Lineage,
    MemberApproval,
    Run,
    RunStatus,
    StopReason,
)
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store.approvals import ApprovalState
from mnemesh_orchestrator.store.leases import first_unfinished_run
from mnemesh_orchestrator.store.run_queue import queue_runs
from mnemesh_orchestrator.store.run_rows import (
    approvals_awaited,
    callbacks_of,
    delete_callbacks,
    delete_empty_batches,
    insert_callback,
)
from mnemesh_orchestrator.store.tables import approvals, run_batches, runs
from mnemesh_orchestrator.store.turn_statements import LeaseClock

_RUN: Final[sa.BindParameter[Any]] = sa.bindparam("p_run")
_CHILDREN: Final = (
    sa.select(
        runs.c.id,
        runs.c.organization_id,
        runs.c.agent_id,
        runs.c.status,
        runs.c.stop_reason,
        runs.c.origin,
        runs.c.conversation_id,
        runs.c.document,
    )
    .where(runs.c.parent_run_id == _RUN)
    .order_by(runs.c.creation_number)
)
_APPROVAL_OF: Final = (
    sa.select(approvals.c.state, approvals.c.decided_by_run_id)
    .where(approvals.c.conversation_id == sa.bindparam("p_conversation"), approvals.c.run_id == _RUN)
    .order_by(approvals.c.created_at.desc())
    .limit(1)
)
_NUMBER: Final = sa.select(runs.c.creation_number).where(runs.c.id == _RUN)


class _Document(msgspec.Struct):
    """The part of a run's document that this module reads."""

    lineage: Lineage | None = None


_LINEAGE: Final = msgspec.json.Decoder(_Document)


class RunRelationStore:
    """Reads of the runs that belong to a run.

    Example:
        >>> [child.id for child in await relations.children(parent.organization_id, parent.id)]
        ['run-…']
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_children(self, organization_id: str, run_id: str) -> tuple[ChildRun, ...]:
        """Returns the runs that a run started, in the order of their creation."""
        query = _CHILDREN.where(runs.c.organization_id == organization_id)
        rows = await self._database.read(lambda conn: conn.execute(query, {"p_run": run_id}).all())
        return tuple(
            ChildRun(
                row.id,
                row.agent_id,
                RunStatus(row.status),
                StopReason(row.stop_reason) if row.stop_reason else None,
                _is_awaited(row),
            )
            for row in rows
        )

    async def list_awaited_approvals(self, run_id: str) -> tuple[MemberApproval, ...]:
        """Returns the pending approvals of the runs that a run started and waits for, directly or through others."""
        found = await self._database.read(lambda conn: approvals_awaited(conn, [run_id]))
        return found.get(run_id, ())

    async def continuation(self, run: Run) -> Continuation:
        """Returns what became of the approval for which a run stopped."""
        parameters = {"p_conversation": run.conversation_id, "p_run": run.id}
        row = await self._database.read(lambda conn: conn.execute(_APPROVAL_OF, parameters).first())
        if row is None:
            return Continuation(False)
        return Continuation(row.state == ApprovalState.PENDING, row.decided_by_run_id)

    async def must_give_up(self, parent: Run, child_id: str) -> bool:
        """Returns whether `parent` has to stop waiting for a run that has not begun.

        It does if the child waits in its queue behind a run that waits, itself or through other runs, for `parent` or
        one of its ancestors. Of the runs of such a cycle that wait for a queued run, only the one that was created last
        gives up. All of them find the same one.
        """
        return await self._database.read(lambda conn: _must_give_up(conn, parent, child_id))


def _must_give_up(conn: sa.Connection, parent: Run, child_id: str) -> bool:
    child = conn.execute(sa.select(runs).where(runs.c.id == child_id)).first()
    if child is None:
        return False
    ends = frozenset({parent.id, *(ancestor.run_id for ancestor in parent.lineage.ancestors)})
    path = _Search(conn, ends, set()).path(parent.id, child)
    if path is None:
        return False
    waiting = dict.fromkeys((parent.id, *path))
    return max(waiting, key=lambda run_id: conn.execute(_NUMBER, {"p_run": run_id}).scalar() or 0) == parent.id


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for a way from a run to one of `ends` along what runs wait for. Its steps share `seen`."""

    conn: sa.Connection
    ends: frozenset[str]
    seen: set[str]

    def path(self, parent_id: str, run: Any) -> tuple[str, ...] | None:
        """Returns the runs on the way that wait for queued runs; None if there is no way.

        `parent_id` is the run that waits for this one; empty if it is in the same queue.
        """
        if run.id in self.ends:
            return ()
        if run.id in self.seen:
            return None
        self.seen.add(run.id)
        if run.status == RunStatus.CREATED:
            ahead = first_unfinished_run(self.conn, run.conversation_id)
            # The first run of a queue waits for no run. It needs no place either, because another run waits after it.
            path = None if ahead is None or ahead.id == run.id else self.path("", ahead)
            return None if path is None else (*([parent_id] if parent_id else []), *path)
        for child in _awaited(self.conn, run.id):
            if (path := self.path(run.id, child)) is not None:
                return path
        return None


def _awaited(conn: sa.Connection, run_id: str) -> Iterator[Any]:
    """Yields the rows of the unfinished runs that a run waits for."""
    for row in conn.execute(_CHILDREN, {"p_run": run_id}).all():
        if not RunStatus(row.status).ended and _is_awaited(row):
            yield row


def _is_awaited(row: Any) -> bool:
    """Returns whether the run that started a run waits for it."""
    lineage = _LINEAGE.decode(row.document).lineage
    return lineage is not None and bool(lineage.ancestors) and lineage.ancestors[-1].run_id == lineage.parent_run_id


@dataclass(frozen=True, eq=False)
class BatchStore:
    """Batches. The runs of a batch are those of a RunStore; a batch is deleted with the last of them."""

    database: Database
    lease_clock: LeaseClock

    async def find_repeated(self, key: RequestKey | None) -> Batch | None:
        """Returns the batch that `start` would return instead of storing another one. Raises RequestIdReused."""
        return await self.database.read(lambda conn: _repeated(conn, key))

    async def start(self, key: RequestKey | None, draft: BatchDraft, runs: Sequence[Run]) -> Batch:
        """Stores a batch with its runs at the ends of the queues of their conversations. Claims none.

        A repeat returns the first batch, and stores nothing.

        Raises:
            PendingApproval: A conversation waits for an approval.
        """

        def write(conn: sa.Connection) -> Batch:
            before = _repeated(conn, key)
            if before is not None:
                return before
            conn.execute(run_batches.insert().values(_row(key, draft)))
            if draft.callback_url is not None:
                insert_callback(conn, draft, draft.callback_url)
            queue_runs(conn, self.lease_clock, runs)
            return _read(conn, draft.organization_id, draft.id)

        return await self.database.write(write)

    async def get(self, organization_id: str, batch_id: str) -> Batch:
        """Returns a batch. Raises NotFound."""
        return await self.database.read(lambda conn: _read(conn, organization_id, batch_id))

    async def list(self, organization_id: str, page: PageQuery) -> Page[Batch]:
        """Returns a page of batches ordered by creation."""
        scope = run_batches.c.organization_id == organization_id
        query = sa.select(run_batches).where(scope)

        def read(conn: sa.Connection) -> Page[Batch]:
            found = paginate(conn, query, page, key=run_batches.c.created_at, id=run_batches.c.id, scope=scope)
            batches = {batch.id: batch for batch in _batches(conn, found.items)}
            return found.map(lambda row: batches[row.id])

        return await self.database.read(read)

    async def mark_cancelled(self, organization_id: str, batch_id: str) -> bool:
        """Notes that the caller cancels a batch. Returns False, and changes nothing, if all its runs have ended.

        Raises NotFound.
        """
        mark = run_batches.update().where(run_batches.c.id == batch_id).values(was_cancelled=True)

        def write(conn: sa.Connection) -> bool:
            if not _read(conn, organization_id, batch_id).unfinished:
                return False
            conn.execute(mark)
            return True

        return await self.database.write(write)


def _row(key: RequestKey | None, draft: BatchDraft) -> dict[str, Any]:
    return {
        "id": draft.id,
        "organization_id": draft.organization_id,
        "subject_id": draft.subject_id,
        "request_id": key and key.request_id,
        "request_fingerprint": key and key.fingerprint,
        "was_cancelled": False,
        "created_at": draft.created_at,
    }


def _repeated(conn: sa.Connection, key: RequestKey | None) -> Batch | None:
    if key is None:
        return None
    same = sa.and_(run_batches.c.organization_id == key.organization_id, run_batches.c.request_id == key.request_id)
    row = conn.execute(sa.select(run_batches).where(same)).first()
    if row is None:
        return None
    if row.request_fingerprint != key.fingerprint:
        raise RequestIdReused(
            "This request_id was used before with other content.", field="request_id", request_id=key.request_id
        )
    return _batches(conn, [row])[0]


def _read(conn: sa.Connection, organization_id: str, batch_id: str) -> Batch:
    same = sa.and_(run_batches.c.organization_id == organization_id, run_batches.c.id == batch_id)
    row = conn.execute(sa.select(run_batches).where(same)).first()
    if row is None:
        raise NotFound(f"There is no batch {batch_id}.", resource_id=batch_id)
    return _batches(conn, [row])[0]


def _batches(conn: sa.Connection, rows: Sequence[Any]) -> tuple[Batch, ...]:
    """Returns the batches of rows, with the numbers of their runs."""
    ids = [row.id for row in rows]
    query = (
        sa.select(runs.c.batch_id, runs.c.status, sa.func.count(), sa.func.max(runs.c.updated_at))
        .where(runs.c.batch_id.in_(ids))
        .group_by(runs.c.batch_id, runs.c.status)
    )
    counts: dict[str, dict[RunStatus, int]] = defaultdict(dict)
    ends: dict[str, datetime] = {}
    for batch_id, status, count, updated_at in conn.execute(query):
        counts[batch_id][RunStatus(status)] = count
        ends[batch_id] = max(ends.get(batch_id, updated_at), updated_at)
    callbacks = callbacks_of(conn, ids)
    return tuple(_batch(row, counts[row.id], ends.get(row.id), callbacks.get(row.id)) for row in rows)


def _batch(
    row: Any, counts: Mapping[RunStatus, int], last_end: datetime | None, callback: CallbackResult | None
) -> Batch:
    return Batch(row.id, row.created_at, counts, row.was_cancelled, last_end, callback)


_ENDED: Final = tuple(status for status in RunStatus if status.ended)
_BATCH: Final = 200
"""The number of runs whose input is read at a time."""
_AT_ONCE: Final = 200
"""The number of runs that one transaction deletes, so that turns do not wait long."""
_ASKING: Final = sa.select(approvals.c.run_id).where(sa.text("approvals.state = 'pending'"))


class RunRetention:
    """The deletion of old runs, and the search for those of a person who is erased.

    Example:
        >>> await retention.purge_runs(clock.now() - timedelta(days=30))
        0
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_sent_by(self, organization_id: str, sender_id: str) -> tuple[str, ...]:
        """Returns the ids of the runs of an organization whose input has a message of a sender, and of the runs that
        answered their approvals. Reads all runs.
        """
        return await self._database.read(lambda conn: runs_sent_by(conn, organization_id, sender_id))

    async def purge_runs(self, before: datetime) -> int:
        """Deletes the runs of all organizations that ended before a time, with their steps and events.

        Returns their number.

        Runs with a pending approval are kept.
        """
        ended = sa.and_(runs.c.status.in_(_ENDED), ~runs.c.input_unrecorded)
        old = sa.and_(ended, runs.c.updated_at < before, runs.c.id.not_in(_ASKING))
        query, total = sa.select(runs.c.id, runs.c.batch_id).where(old).limit(_AT_ONCE), 0
        while found := await self._database.read(lambda conn: conn.execute(query).all()):
            total += await self._delete(found, old)
        return total

    async def _delete(self, found: Sequence[Any], old: sa.ColumnElement[bool]) -> int:
        ids, batch_ids = [row.id for row in found], {row.batch_id for row in found if row.batch_id is not None}

        def write(conn: sa.Connection) -> int:
            deleted = conn.execute(runs.delete().where(runs.c.id.in_(ids), old)).rowcount
            delete_callbacks(conn, ids)
            if batch_ids:
                delete_empty_batches(conn, sorted(batch_ids))
            return deleted

        return await self._database.write(write)


def runs_sent_by(conn: sa.Connection, organization_id: str, sender_id: str) -> tuple[str, ...]:
    """Returns the runs whose input has a message of a sender, and the runs that answered their approvals."""
    found: list[str] = []
    last = ""
    while True:
        query = (
            sa.select(runs.c.id, runs.c.document)
            .where(runs.c.organization_id == organization_id, runs.c.id > last)
            .order_by(runs.c.id)
            .limit(_BATCH)
        )
        rows = conn.execute(query).all()
        found += [row.id for row in rows if sender_id.encode() in row.document]
        if len(rows) < _BATCH:
            return _with_answering_runs(conn, found)
        last = rows[-1].id


def _with_answering_runs(conn: sa.Connection, run_ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the runs, and those that answered their approvals, which may have asked for approvals themselves."""
    found = dict.fromkeys(run_ids)
    left = list(run_ids)
    while left:
        batch, left = left[:_BATCH], left[_BATCH:]
        new = [run_id for run_id in approval_statements.answering_runs(conn, batch) if run_id not in found]
        found |= dict.fromkeys(new)
        left += new
    return tuple(found)
