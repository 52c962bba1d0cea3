"""The rows that end the commit of a step: nothing in its transaction reads them, so PostgreSQL takes them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from mnemesh_recall.model.outbox import ChangeKind
from mnemesh_recall.store.sql import message_rows as messages
from mnemesh_recall.store.sql import windows
from mnemesh_recall.store.sql.tables import context_entries, index_outbox, step_commits, tool_call_rows
from mnemesh_recall.store.sql.transaction import Deferred, Transaction
from mnemesh_recall.store.sql.windows import MOVE, Head

_RECORD: Final = sa.insert(step_commits)


def _inserted(table: sa.Table, columns: Sequence[str], **same: sa.ColumnElement[Any]) -> sa.CTE:
    """An insertion of as many rows as the arrays have that are given for the columns, `<table>_<column>`."""
    arrays = (sa.bindparam(f"{table.name}_{name}", type_=ARRAY(table.c[name].type)) for name in columns)
    given = sa.func.unnest(*arrays).table_valued(*columns, name=f"{table.name}_given").render_derived()
    rows = sa.select(*(given.c[name] for name in columns), *same.values())
    return sa.insert(table).from_select([*columns, *same], rows).cte(f"{table.name}_inserted")


_CLOSE: Final = (
    sa.insert(step_commits)
    .values({column.name: sa.bindparam(f"its_{column.name}", type_=column.type) for column in step_commits.c})
    .add_cte(
        _inserted(tool_call_rows, ("tool_call_id", "message_id")),
        _inserted(
            index_outbox,
            ("subject_id",),
            kind=sa.literal(ChangeKind.MESSAGE.value),
            created_at=sa.bindparam("now", type_=index_outbox.c.created_at.type),
        ),
        _inserted(
            context_entries, ("position", "message_id"), conversation_id=sa.bindparam("conversation", type_=sa.Text)
        ),
        MOVE.cte("moved"),
    )
)


def write_step_commit(
    tx: Transaction,
    deferred: Deferred,
    state: Head,
    entering: Sequence[str],
    moved: dict[str, Any],
    record: dict[str, Any],
) -> None:
    """Writes the deferred rows, the new entries and next state of the window, and the record of the step."""
    conn = tx.conn
    if conn.dialect.name != "postgresql":
        messages.finish(tx, deferred)
        windows.enter(conn, state.conversation_id, state.next_position, entering)
        conn.execute(MOVE, moved)
        conn.execute(_RECORD, record)
        return
    asked: dict[str, Any] = {
        "tool_call_rows_tool_call_id": [call["tool_call_id"] for call in deferred.calls],
        "tool_call_rows_message_id": [call["message_id"] for call in deferred.calls],
        "index_outbox_subject_id": deferred.news,
        "now": tx.now,
        "context_entries_position": list(range(state.next_position, state.next_position + len(entering))),
        "context_entries_message_id": list(entering),
    }
    conn.execute(_CLOSE, {**asked, **moved, **{f"its_{name}": value for name, value in record.items()}})
