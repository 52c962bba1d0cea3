"""The runs that a sender caused."""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from mnemesh_orchestrator.store.sql import approvals
from mnemesh_orchestrator.store.sql.tables import runs

_BATCH: Final = 200
"""The number of runs whose input is read at a time."""


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
        new = [run_id for run_id in approvals.answering_runs(conn, batch) if run_id not in found]
        found |= dict.fromkeys(new)
        left += new
    return tuple(found)
