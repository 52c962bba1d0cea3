"""The relations between runs, read from their rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.runs import ChildRun, Continuation, Lineage, MemberApproval, Run, RunStatus, StopReason
from mnemesh_orchestrator.store.approvals import ApprovalState
from mnemesh_orchestrator.store.leases import first_unfinished_run
from mnemesh_orchestrator.store.run_rows import approvals_awaited
from mnemesh_orchestrator.store.tables import approvals, runs

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

    async def children(self, organization_id: str, run_id: str) -> tuple[ChildRun, ...]:
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

    async def approvals_awaited(self, run_id: str) -> tuple[MemberApproval, ...]:
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
