"""The commit of a step and the replacement of a window, each in one transaction."""

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import RequestIdReused
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.indexing.outbox import ChangeKind
from mnemesh_types.messages import Message
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from mnemesh_recall.errors import StepConflict, WindowMoved
from mnemesh_recall.model.contexts import (
    ContextReplacement,
    StepCommit,
    StepResult,
    is_derived_return,
    last_message_time,
    require_system_start,
    require_window_messages,
)
from mnemesh_recall.model.writers import next_epoch
from mnemesh_recall.store import message_rows, tables, windows
from mnemesh_recall.store.fulltext import indexing
from mnemesh_recall.store.message_rows import NEWEST_OF, Row, fingerprint, message_to_row, text_content
from mnemesh_recall.store.tables import context_entries, index_tables, step_commits, tool_call_rows, unindexed_agents
from mnemesh_recall.store.transaction import MESSAGES, Counters, Deferred, Transaction
from mnemesh_recall.store.windows import UPDATE_STATE, State

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


_INSERT_ALL: Final = Prepared(
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
        indexing.note(conn, deferred.searchable, tx.now)
        windows.insert_entries(conn, state.conversation_id, state.next_position, appended)
        _UPDATE_STATE.send(conn, next_state)
        _INSERT_RECORD.send(conn, record)
        return
    arrays: dict[str, Any] = {
        "tool_call_rows_tool_call_id": [call["tool_call_id"] for call in deferred.calls],
        "tool_call_rows_message_id": [call["message_id"] for call in deferred.calls],
        "index_outbox_subject_id": [row["id"] for row in deferred.searchable],
        "now": tx.now,
        "context_entries_position": list(range(state.next_position, state.next_position + len(appended))),
        "context_entries_message_id": list(appended),
    }
    commit = {f"commit_{name}": value for name, value in record.items()}
    row = (
        indexing.noted(deferred.searchable, tx.now) if deferred.searchable else dict.fromkeys(unindexed_agents.c.keys())
    )
    noted = {f"unindexed_{name}": value for name, value in row.items()}
    parameters = {**arrays, **next_state, **commit, **noted, "has_unindexed": bool(deferred.searchable)}
    _INSERT_ALL.send(conn, parameters)


_s, _m, _a = step_commits.c, tables.messages.c, tables.agents.c
_EARLIER: Final = sa.select(step_commits).where(
    _s.organization_id == sa.bindparam("organization"),
    sa.or_(_s.step_id == sa.bindparam("step"), sa.and_(_s.request_id != "", _s.request_id == sa.bindparam("request"))),
)
# One statement for everything that a commit reads before it writes: nearly every step and message is new.
_STATE: Final = {
    dialect: Prepared(
        windows.STATE.add_columns(
            _EARLIER.exists().label("committed"),
            sa.exists(sa.select(_m.id).where(has_id)).label("stored"),
            *(_a[name] for name in ("last_sequence_id", "last_turn_index")),
            NEWEST_OF.label("newest_turn"),
        )
    )
    for dialect, has_id in tables.among(_m.id).items()
}
_later: Final = step_commits.alias()
_OLD: Final = (
    sa.select(_s.organization_id, _s.step_id)
    .where(
        _s.created_at < sa.bindparam("before", type_=_s.created_at.type),
        sa.exists().where(_later.c.conversation_id == _s.conversation_id, _later.c.version > _s.version),
    )
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_DELETE: Final = sa.delete(step_commits).where(
    _s.organization_id == sa.bindparam("old_organization"), _s.step_id == sa.bindparam("old_step")
)


@dataclasses.dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step, and the fingerprint of their content. They are built once, before the transaction."""

    rows: Sequence[Row]
    fingerprint: str


def step_rows(organization_id: str, step: StepCommit) -> StepRows:
    """Returns the rows of all messages of a step, the hidden ones last."""
    rows = [message_to_row(message, organization_id) for message in step.messages]
    hidden = [message_to_row(message, organization_id) for message in step.hidden_messages]
    return StepRows((*rows, *hidden), fingerprint(rows, hidden))


def commit(tx: Transaction, step: StepCommit, content: StepRows) -> StepResult:
    """See MessageStore.commit_step. The order of the checks is part of the contract."""
    conn, organization_id = tx.conn, tx.organization_id
    batch = (*step.messages, *step.hidden_messages)
    parameters = {**_parameters(tx, step), **tables.listed(conn, message_rows.ids_of(batch))}
    state = _STATE[conn.dialect.name].first(conn, parameters)
    if state is None or state.committed:
        earlier = _earlier_commit(tx, step)
        if earlier is not None:
            return _replay(tx, step, content.fingerprint, earlier)
    if state is None or state.agent_id != step.agent_id:
        raise windows.missing(conn, organization_id, step.conversation_id, step.agent_id)
    epoch = next_epoch(step.conversation_id, step.lease, state.epoch)
    deferred = Deferred()
    asked = message_rows.ask_known(tx, batch) if state.stored else None
    stored = message_rows.store_rows(tx, step.agent_id, batch, content.rows, deferred, asked, _before(state))
    appended = windows.ids_to_append(conn, step.conversation_id, message_rows.ids_of(step.messages), stored.known_ids)
    if step.system_text is not None:
        windows.update_system_message(conn, state.system_message_id, text_content(step.system_text), tx.now)
    next_state = windows.next_state(
        state,
        tx.now,
        epoch=epoch,
        next_position=state.next_position + len(appended),
        last_message_at=last_message_time(step.messages, state.last_message_at),
    )
    result = StepResult(
        version=state.version + 1,
        rebased=state.version != step.base_version,
        replayed=False,
        sequence_ids=stored.sequence_ids,
        agent_message_count=stored.agent_message_count,
    )
    write_step_commit(tx, deferred, state, appended, next_state, _record(tx, step, content.fingerprint, result))
    if not result.rebased:
        return result
    return dataclasses.replace(result, context=windows.read(conn, organization_id, step.conversation_id))


def replace(tx: Transaction, new: ContextReplacement) -> None:
    """See MessageStore.replace_context."""
    conn, organization_id = tx.conn, tx.organization_id
    state = windows.read_state(conn, organization_id, new.conversation_id, new.agent_id)
    epoch = next_epoch(new.conversation_id, new.lease, state.epoch)
    if new.base_version != state.version:
        raise WindowMoved(new.conversation_id, state.version)
    current_ids = windows.read_ids(conn, new.conversation_id)
    message_rows.store(tx, new.agent_id, (*new.new_messages, *_kept_error_returns(conn, new, current_ids)))
    window = message_rows.read(conn, organization_id, new.message_ids)
    require_window_messages(new, window)
    require_system_start(new, window[0], state.system_message_id)
    if set(current_ids) - {state.system_message_id, *new.message_ids}:
        windows.count_reset(conn, new.conversation_id, tx.now)
    windows.delete_entries(conn, new.conversation_id)
    windows.insert_entries(conn, new.conversation_id, 0, new.message_ids)
    if new.system_text is not None:
        windows.update_system_message(conn, new.message_ids[0], text_content(new.system_text), tx.now)
    windows.update_state(
        conn,
        state,
        tx.now,
        epoch=epoch,
        system_message_id=new.message_ids[0],
        next_position=len(new.message_ids),
        last_message_at=last_message_time(new.new_messages, state.last_message_at),
    )


def delete_old(conn: sa.Connection, before: datetime, limit: int) -> int:
    """Deletes at most `limit` records of earlier steps and returns their number. See MessageStore.purge_steps."""
    found = conn.execute(_OLD, {"before": before, "limit": limit}).all()
    if found:
        conn.execute(_DELETE, [{"old_organization": row.organization_id, "old_step": row.step_id} for row in found])
    return len(found)


def _parameters(tx: Transaction, step: StepCommit) -> dict[str, Any]:
    return {
        "organization": tx.organization_id,
        "conversation": step.conversation_id,
        "step": step.step_id,
        "request": step.request_id,
    }


def _earlier_commit(tx: Transaction, step: StepCommit) -> sa.Row[Any] | None:
    rows = tx.conn.execute(_EARLIER, _parameters(tx, step)).all()
    for row in rows:
        if row.step_id == step.step_id:
            return row
    if rows:
        raise RequestIdReused(
            "This request_id was used before with other content.", field="request_id", request_id=step.request_id
        )
    return None


def _replay(tx: Transaction, step: StepCommit, content: str, earlier: sa.Row[Any]) -> StepResult:
    is_same_content = earlier.fingerprint == content
    if not is_same_content or (step.agent_id, step.conversation_id) != (earlier.agent_id, earlier.conversation_id):
        raise StepConflict(step.step_id)
    return StepResult(
        version=earlier.version,
        rebased=earlier.rebased,
        replayed=True,
        sequence_ids=tuple(msgspec.json.decode(earlier.sequence_ids, type=list[int])),
        agent_message_count=earlier.message_count,
        context=windows.read(tx.conn, tx.organization_id, step.conversation_id) if earlier.rebased else None,
    )


def _before(state: State) -> message_rows.Before:
    return message_rows.Before(
        counters=Counters(state.last_sequence_id, state.message_count, state.last_turn_index),
        newest_turns={} if state.newest_turn is None else {state.conversation_id: state.newest_turn},
    )


def _record(tx: Transaction, step: StepCommit, content: str, result: StepResult) -> dict[str, Any]:
    return {
        "organization_id": tx.organization_id,
        "step_id": step.step_id,
        "request_id": step.request_id,
        "agent_id": step.agent_id,
        "conversation_id": step.conversation_id,
        "fingerprint": content,
        "version": result.version,
        "rebased": result.rebased,
        "sequence_ids": msgspec.json.encode(result.sequence_ids).decode(),
        "message_count": result.agent_message_count,
        "created_at": tx.now,
    }


def _kept_error_returns(conn: sa.Connection, new: ContextReplacement, current_ids: Sequence[str]) -> list[Message]:
    """Returns the derived error returns of the current window that the new window keeps."""
    kept = set(new.message_ids).difference(message_rows.ids_of(new.new_messages), current_ids)
    window = windows.read_messages(conn, new.conversation_id) if kept else ()
    return [message for message in window if message.id in kept and is_derived_return(message)]
