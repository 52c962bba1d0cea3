"""The rows at the end of a step commit. No statement of the transaction reads them, so PostgreSQL gets them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.indexing.records import ChangeKind
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from mnemesh_recall.model.outbox import MESSAGES
from mnemesh_recall.store.sql import message_rows, windows
from mnemesh_recall.store.sql.fulltext import unindexed
from mnemesh_recall.store.sql.tables import (
    context_entries,
    index_tables,
    step_commits,
    tool_call_rows,
    unindexed_agents,
)
from mnemesh_recall.store.sql.transaction import Deferred, Transaction
from mnemesh_recall.store.sql.windows import UPDATE_STATE, State

_INSERT_RECORD: Final = Prepared(sa.insert(step_commits))
_UPDATE_STATE: Final = Prepared(UPDATE_STATE)


def _insert_cte(table: sa.Table, columns: Sequence[str], **constants: sa.ColumnElement[Any]) -> sa.CTE:
    """Returns an insertion of one row per element of the array parameters `<table>_<column>`."""
    arrays = (sa.bindparam(f"{table.name}_{name}", type_=ARRAY(table.c[name].type)) for name in columns)
    unnested = sa.func.unnest(*arrays).table_valued(*columns, name=f"{table.name}_unnested").render_derived()
    rows = sa.select(*(unnested.c[name] for name in columns), *constants.values())
    return sa.insert(table).from_select([*columns, *constants], rows).cte(f"{table.name}_inserted")


def _unindexed_cte() -> sa.CTE:
    """Returns the note that messages are not indexed, if there are any.

    A row that exists is updated with its own value. PostgreSQL then refuses one of two transactions of which one
    commits a message, and the other one deletes the row because it does not see this message.
    """
    table = unindexed_agents
    row = sa.select(*(sa.bindparam(f"unindexed_{column.name}", type_=column.type) for column in table.c))
    rows = row.where(sa.bindparam("has_unindexed", type_=sa.Boolean))
    inserted = postgresql.insert(table).from_select([column.name for column in table.c], rows)
    same = {table.c.position: table.c.position}
    return inserted.on_conflict_do_update(index_elements=[table.c.agent_id], set_=same).cte("unindexed_noted")


_INSERT_ALL: Final = (
    sa.insert(step_commits)
    .values({column.name: sa.bindparam(f"commit_{column.name}", type_=column.type) for column in step_commits.c})
    .add_cte(
        _insert_cte(tool_call_rows, ("tool_call_id", "message_id")),
        _insert_cte(
            index_tables.changes,
            ("subject_id",),
            collection=sa.literal(MESSAGES),
            kind=sa.literal(ChangeKind.RECORD.value),
            created_at=sa.bindparam("now", type_=index_tables.changes.c.created_at.type),
        ),
        _insert_cte(
            context_entries, ("position", "message_id"), conversation_id=sa.bindparam("conversation", type_=sa.Text)
        ),
        _unindexed_cte(),
        UPDATE_STATE.cte("state_updated"),
    )
)


def write_step_commit(
    tx: Transaction,
    deferred: Deferred,
    state: State,
    appended: Sequence[str],
    next_state: dict[str, Any],
    record: dict[str, Any],
) -> None:
    """Writes the last rows of a step commit.

    Args:
        tx: the transaction.
        deferred: the rows that storing the messages deferred.
        state: the state of the window before the commit.
        appended: the ids of the messages to append to the window.
        next_state: the state of the window after the commit, from `windows.next_state`.
        record: the row of `step_commits`.
    """
    conn = tx.conn
    if conn.dialect.name != "postgresql":
        message_rows.write_deferred(tx, deferred)
        unindexed.note(conn, deferred.searchable, tx.now)
        windows.insert_entries(conn, state.conversation_id, state.next_position, appended)
        _UPDATE_STATE.change(conn, next_state)
        _INSERT_RECORD.change(conn, record)
        return
    arrays: dict[str, Any] = {
        "tool_call_rows_tool_call_id": [call["tool_call_id"] for call in deferred.calls],
        "tool_call_rows_message_id": [call["message_id"] for call in deferred.calls],
        "index_outbox_subject_id": [message.id for message in deferred.searchable],
        "now": tx.now,
        "context_entries_position": list(range(state.next_position, state.next_position + len(appended))),
        "context_entries_message_id": list(appended),
    }
    commit = {f"commit_{name}": value for name, value in record.items()}
    row = (
        unindexed.noted(deferred.searchable, tx.now)
        if deferred.searchable
        else dict.fromkeys(unindexed_agents.c.keys())
    )
    noted = {f"unindexed_{name}": value for name, value in row.items()}
    parameters = {**arrays, **next_state, **commit, **noted, "has_unindexed": bool(deferred.searchable)}
    conn.execute(_INSERT_ALL, parameters)
