"""Rows of callbacks."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from mnemesh_orchestrator.model.batches import BatchDraft
from mnemesh_orchestrator.model.callbacks import CallbackResult
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.sql.tables import callbacks


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
    return {row.target_id: _result(row) for row in conn.execute(query)}


def _result(row: Any) -> CallbackResult:
    return CallbackResult(row.url, row.sent_at, row.status, row.error)


def delete_callbacks(conn: sa.Connection, target_ids: Sequence[str]) -> None:
    """Deletes the callbacks of runs or batches that are being deleted."""
    conn.execute(callbacks.delete().where(callbacks.c.target_id.in_(target_ids)))
