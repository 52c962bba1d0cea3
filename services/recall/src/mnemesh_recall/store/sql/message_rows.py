"""Writes and reads of message rows, with the rows that depend on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.sql.readahead import read_ahead
from mnemesh_types.messages import Message

from mnemesh_recall.errors import message_exists, no_message
from mnemesh_recall.model.messages import has_same_content
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql import agents, message_filters, outbox, turns
from mnemesh_recall.store.sql.fulltext.dialogues import COLUMNS as SOURCE_COLUMNS
from mnemesh_recall.store.sql.fulltext.dialogues import index_new, reindex_around, sources_from_rows
from mnemesh_recall.store.sql.fulltext.documents import SearchableMessage
from mnemesh_recall.store.sql.rows import COLUMNS, AnyRow, Row, content_columns, message_from_row, message_to_row
from mnemesh_recall.store.sql.tables import context_entries, messages, tool_call_rows, trace_lines
from mnemesh_recall.store.sql.transaction import Deferred, Transaction

_m = messages.c
_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("organization")
_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("ids", expanding=True)

_BY_ID: Final = sa.select(*COLUMNS, _m.organization_id).where(_m.id.in_(_IDS))
_VISIBLE: Final = sa.select(*COLUMNS).where(message_filters.owned(_ORGANIZATION), _m.id.in_(_IDS))
# The number of rows does not change the text of the statement, so that connections need not prepare it again.
_VISIBLE_ROWS: Final = {
    dialect: Prepared(
        sa.select(*COLUMNS).where(message_filters.owned(_ORGANIZATION), sa.text(f"messages.row_id {rows}"))
    )
    for dialect, rows in {
        "sqlite": "IN (SELECT value FROM json_each(:rows))",
        "postgresql": "= ANY (CAST(:rows AS bigint[]))",
    }.items()
}
_INSERT: Final = Prepared(sa.insert(messages))
_INSERT_RETURNING: Final = sa.insert(messages).returning(_m.row_id, sort_by_parameter_order=True)
_SOURCES: Final = sa.select(*SOURCE_COLUMNS).where(_m.id.in_(_IDS))
_INSERT_CALLS: Final = sa.insert(tool_call_rows)


class Stored(NamedTuple):
    """The result of storing messages: a sequence id for each of them, and the ids that existed before."""

    sequence_ids: tuple[int, ...]
    known_ids: frozenset[str]
    agent_message_count: int


def store(tx: Transaction, agent_id: str, batch: Sequence[Message]) -> Stored:
    """Stores the messages that do not exist yet, each under the next sequence id of the agent.

    Raises:
        AlreadyExists: an id belongs to other content.
        NotFound, Erased: the agent cannot be written, or an id belongs to another organization.
    """
    deferred = Deferred()
    rows = [message_to_row(message, tx.organization_id) for message in batch]
    stored = store_rows(tx, agent_id, batch, rows, deferred)
    index_new(tx.conn, tx.fulltext, deferred.searchable)
    write_deferred(tx, deferred)
    return stored


def write_deferred(tx: Transaction, deferred: Deferred) -> None:
    """Writes the rows that `store_rows` deferred, except for words."""
    if deferred.calls:
        tx.conn.execute(_INSERT_CALLS, deferred.calls)
    outbox.add_messages(tx.conn, [message.id for message in deferred.searchable], tx.now)


def store_rows(
    tx: Transaction,
    agent_id: str,
    batch: Sequence[Message],
    rows: Sequence[Row],
    deferred: Deferred,
    *,
    all_new: bool = False,
) -> Stored:
    """Stores messages as `store` does, and leaves the deferred rows and the words to the caller.

    Args:
        tx: the transaction.
        agent_id: the agent of all messages.
        batch: the messages.
        rows: their rows, in the same order.
        deferred: receives the rows that the caller writes at the end.
        all_new: True if none of the ids exists.
    """
    stored_before = () if all_new or not batch else _known_messages(tx, batch)
    known = {message.id: message.sequence_id for message in stored_before}
    new = [(message, row) for message, row in zip(batch, rows, strict=True) if message.id not in known]
    new_messages = [message for message, _ in new]
    opened = turns.count_opened(new_messages)
    counters = agents.take_sequence_ids(tx, agent_id, len(new), opened)
    first = counters.last_sequence_id - len(new) + 1
    assigned = {message.id: first + index for index, (message, _) in enumerate(new)}
    if new:
        indexes = range(counters.last_turn_index - opened + 1, counters.last_turn_index + 1)
        placed = turns.assign_turns(tx, agent_id, new_messages, turns.opened_by(stored_before), indexes)
        complete = [
            {**row, "sequence_id": assigned[message.id], "turn_id": message.turn_id}
            for message, (_, row) in zip(placed, new, strict=True)
        ]
        _insert(tx, complete, deferred)
        deferred.calls.extend(
            {"tool_call_id": id_, "message_id": message.id} for message in placed for id_ in message.tool_call_ids
        )
    sequence_ids = known | assigned
    return Stored(tuple(sequence_ids[message.id] for message in batch), frozenset(known), counters.message_count)


def _known_messages(tx: Transaction, batch: Sequence[Message]) -> list[Message]:
    """Returns the stored messages among `batch`, by sequence id. Raises AlreadyExists for one with other content."""
    rows = tx.conn.execute(_BY_ID, {"ids": [message.id for message in batch]}).all()
    by_id = {message.id: message for message in batch}
    known = []
    for row in rows:
        stored = message_from_row(row)
        if row.organization_id != tx.organization_id:
            raise no_message(stored.id)
        if not has_same_content(stored, by_id[stored.id]):
            raise message_exists(stored.id)
        known.append(stored)
    return sorted(known, key=lambda message: message.sequence_id)


def _insert(tx: Transaction, rows: list[Row], deferred: Deferred) -> None:
    row_ids = _insert_rows(tx.conn, rows)
    deferred.searchable.extend(
        SearchableMessage(
            row_id=row_id,
            id=row["id"],
            organization_id=row["organization_id"],
            agent_id=row["agent_id"],
            conversation_id=row["conversation_id"],
            role=row["role"],
            created_at=row["created_at"],
            sequence_id=row["sequence_id"],
            name=row["name"],
            text=row["search_text"],
        )
        for row, row_id in zip(rows, row_ids, strict=True)
        if row["search_text"]
    )


def _insert_rows(conn: sa.Connection, rows: Sequence[Row]) -> Sequence[int]:
    """Inserts rows of messages and returns their row ids, in order."""
    if conn.dialect.name != "sqlite":
        return conn.execute(_INSERT_RETURNING, rows).scalars().all()
    # RETURNING takes longer than a statement for each row.
    return [_INSERT.insert(conn, row) for row in rows]


def read(
    conn: sa.Connection, organization_id: str, ids: Sequence[str], row_ids: Mapping[str, int] | None = None
) -> tuple[Message, ...]:
    """Returns the messages that exist among `ids`, in the order of `ids`; see MessageStore.get_messages."""
    known = row_ids or {}
    rows_wanted, ids_wanted = list(known.values()), [id_ for id_ in ids if id_ not in known]
    read_ahead(conn, messages, rows_wanted)
    selected: list[AnyRow] = []
    if rows_wanted:
        dialect = conn.dialect.name
        rows = json.dumps(rows_wanted) if dialect == "sqlite" else rows_wanted
        selected.extend(_VISIBLE_ROWS[dialect].all(conn, {"organization": organization_id, "rows": rows}))
    if ids_wanted:
        selected.extend(conn.execute(_VISIBLE, {"organization": organization_id, "ids": ids_wanted}))
    found = {message.id: message for message in map(message_from_row, selected)}
    return tuple(found[id_] for id_ in ids if id_ in found)


def newest(conn: sa.Connection, organization_id: str, scope: SearchScope, limit: int) -> list[Message]:
    """Returns the newest searchable messages of a scope, the newest first."""
    order = _m.row_id if scope.agent_id is None else _m.sequence_id
    statement = (
        sa.select(*COLUMNS)
        .where(_m.search_text.is_not(None), *message_filters.scope_conditions(organization_id, scope))
        .order_by(order.desc())
        .limit(limit)
    )
    return list(map(message_from_row, conn.execute(statement)))


def update(tx: Transaction, changed: Message) -> None:
    """Updates the content, name and error mark of a stored message, and everything derived from them."""
    values: dict[str, Any] = {
        **content_columns(changed), "name": changed.name, "is_err": changed.is_err, "updated_at": tx.now
    }  # fmt: skip
    conn = tx.conn
    conn.execute(sa.update(messages).where(_m.id == changed.id).values(values))
    conn.execute(sa.delete(tool_call_rows).where(tool_call_rows.c.message_id == changed.id))
    if calls := [{"tool_call_id": id_, "message_id": changed.id} for id_ in changed.tool_call_ids]:
        conn.execute(_INSERT_CALLS, calls)
    (source,) = sources_from_rows(conn.execute(_SOURCES, {"ids": [changed.id]}))
    if not source.text:
        tx.fulltext.remove(conn, source.agent_id, [source.row_id])
    reindex_around(conn, tx.fulltext, source, exists=True)
    outbox.add_messages(conn, [changed.id], tx.now)


def delete(tx: Transaction, agent_id: str, ids: Sequence[str]) -> int:
    """Deletes messages of one agent and everything derived from them. Returns their number."""
    conn = tx.conn
    sources = sources_from_rows(conn.execute(_SOURCES, {"ids": list(ids)})) if ids else []
    if not sources:
        return 0
    deleted = list(ids)
    turn_ids = set(conn.execute(sa.select(_m.turn_id).where(_m.id.in_(deleted), _m.turn_id.is_not(None))).scalars())
    conn.execute(sa.delete(context_entries).where(context_entries.c.message_id.in_(deleted)))
    conn.execute(sa.delete(tool_call_rows).where(tool_call_rows.c.message_id.in_(deleted)))
    conn.execute(sa.delete(trace_lines).where(trace_lines.c.message_id.in_(deleted)))
    conn.execute(sa.delete(messages).where(_m.id.in_(deleted)))
    turns.delete_empty(conn, agent_id, sorted(turn_ids))
    tx.fulltext.remove(conn, agent_id, [source.row_id for source in sources])
    for source in sources:
        reindex_around(conn, tx.fulltext, source, exists=False)
    agents.subtract_messages(conn, agent_id, len(sources))
    outbox.add_messages(conn, deleted, tx.now)
    return len(sources)


def ids_of(batch: Iterable[Message]) -> list[str]:
    """Returns the ids of messages, in order."""
    return [message.id for message in batch]
