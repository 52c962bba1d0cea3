"""The runs that a run started, and the approvals that they wait for."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_orchestrator.model.runs import MemberApproval, RunStatus
from mnemesh_orchestrator.store.sql.run_rows import decode_run
from mnemesh_orchestrator.store.sql.tables import approvals, events, runs

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
