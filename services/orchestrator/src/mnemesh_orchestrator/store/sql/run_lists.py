"""Lists of runs: their filters, and what their rows show of other tables."""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from mnemesh_orchestrator.model.runs import Run, RunFilter, RunStatus
from mnemesh_orchestrator.store.sql.callback_rows import callbacks_of
from mnemesh_orchestrator.store.sql.run_waits import approvals_awaited
from mnemesh_orchestrator.store.sql.tables import runs


def with_waits(conn: sa.Connection, found: Sequence[Run]) -> tuple[Run, ...]:
    """Returns runs with the approvals of other agents that they wait for."""
    waiting = approvals_awaited(conn, [run.id for run in found if not run.status.ended])
    return tuple(replace(run, waiting_for=waiting[run.id]) if run.id in waiting else run for run in found)


def with_callbacks(conn: sa.Connection, found: Sequence[Run]) -> tuple[Run, ...]:
    """Returns runs with the results of their callbacks."""
    known = callbacks_of(conn, [run.id for run in found if run.config.callback_url is not None])
    return tuple(replace(run, callback=known.get(run.id)) for run in found) if known else tuple(found)


def run_conditions(filter_: RunFilter) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions of a filter."""
    conditions: list[sa.ColumnElement[bool]] = []
    if filter_.agent_ids:
        conditions.append(runs.c.agent_id.in_(filter_.agent_ids))
    if filter_.statuses:
        conditions.append(runs.c.status.in_(filter_.statuses))
    if filter_.background is not None:
        conditions.append(runs.c.background == filter_.background)
    if filter_.stop_reason is not None:
        conditions.append(runs.c.stop_reason == filter_.stop_reason)
    if filter_.conversation_id is not None:
        conditions.append(runs.c.conversation_id == filter_.conversation_id)
    if filter_.group_id is not None:
        conditions.append(runs.c.group_id == filter_.group_id)
    if filter_.origins:
        conditions.append(runs.c.origin.in_(filter_.origins))
    if filter_.parent_run_id is not None:
        conditions.append(runs.c.parent_run_id == filter_.parent_run_id)
    if filter_.batch_id is not None:
        conditions.append(runs.c.batch_id == filter_.batch_id)
    if filter_.active is not None:
        active = runs.c.status.in_((RunStatus.CREATED, RunStatus.RUNNING))
        conditions.append(active if filter_.active else ~active)
    return conditions
