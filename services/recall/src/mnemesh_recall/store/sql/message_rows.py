"""Rows of messages: storing them under new numbers, reading, changing and deleting them, with what hangs on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from mnemesh_recall.errors import message_exists
from mnemesh_recall.model.messages import Message
from mnemesh_recall.store.sql import agents, outbox, turns
from mnemesh_recall.store.sql import message_filters as filters
from mnemesh_recall.store.sql.fulltext.documents import COLUMNS as SOURCE_COLUMNS
from mnemesh_recall.store.sql.fulltext.documents import Source, index_again, index_new, to_sources
from mnemesh_recall.store.sql.rows import COLUMNS, Row, content_columns, to_message, to_row
from mnemesh_recall.store.sql.tables import context_entries, messages, tool_call_rows, trace_lines
from mnemesh_recall.store.sql.transaction import Deferred, Transaction

_m = messages.c
_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("organization")
_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("ids", expanding=True)

_BY_ID: Final = sa.select(*COLUMNS, _m.organization_id).where(_m.id.in_(_IDS))
_VISIBLE: Final = sa.select(*COLUMNS).where(filters.owned(_ORGANIZATION), _m.id.in_(_IDS))
_FINDABLE: Final = sa.select(_m.id).where(filters.owned(_ORGANIZATION), _m.id.in_(_IDS), _m.search_text.is_not(None))
_INSERT: Final = sa.insert(messages).returning(_m.id, _m.row_id)
_SOURCES: Final = sa.select(*SOURCE_COLUMNS).where(_m.id.in_(_IDS))
_CALLS: Final = sa.insert(tool_call_rows)


class Stored(NamedTuple):
    """What storing came to: a number for every message asked for, and which of them were there before."""

    sequence_ids: tuple[int, ...]
    known_ids: frozenset[str]
    agent_message_count: int


def store(tx: Transaction, agent_id: str, given: Sequence[Message]) -> Stored:
    """Stores messages that are not there yet, each under the agent's next number.

    Raises:
        AlreadyExists: an id is taken by other content.
        NotFound, Erased: the agent may not be written.
    """
    deferred = Deferred()
    stored = store_rows(tx, agent_id, given, deferred)
    finish(tx, deferred)
    return stored


def finish(tx: Transaction, deferred: Deferred) -> None:
    """Writes what `store_rows` deferred."""
    if deferred.calls:
        tx.conn.execute(_CALLS, deferred.calls)
    outbox.note_messages(tx.conn, deferred.news, tx.now)


def store_rows(
    tx: Transaction, agent_id: str, given: Sequence[Message], deferred: Deferred, *, all_new: bool = False
) -> Stored:
    """`store`, but for what it leaves to the caller; `all_new` where none of the ids is taken.

    Raises:
        AlreadyExists: an id is taken by other content.
        NotFound, Erased: the agent may not be written.
    """
    known = {} if all_new or not given else _known(tx, given)
    fresh = [message for message in given if message.id not in known]
    numbers = agents.take_numbers(tx, agent_id, len(fresh))
    first = numbers.last_sequence_id - len(fresh) + 1
    given_now = {message.id: first + place for place, message in enumerate(fresh)}
    if fresh:
        fresh = turns.placed(tx, agent_id, fresh)
        rows = [to_row(message, tx.organization_id) for message in fresh]
        for row in rows:
            row["sequence_id"] = given_now[row["id"]]
        _insert(tx, rows, deferred)
        deferred.calls.extend(
            {"tool_call_id": id_, "message_id": message.id} for message in fresh for id_ in message.tool_call_ids
        )
    sequence_ids = known | given_now
    return Stored(tuple(sequence_ids[message.id] for message in given), frozenset(known), numbers.message_count)


def _known(tx: Transaction, given: Sequence[Message]) -> dict[str, int]:
    rows = tx.conn.execute(_BY_ID, {"ids": [message.id for message in given]}).all()
    if not rows:
        return {}
    by_id = {message.id: message for message in given}
    known = {}
    for row in rows:
        there = to_message(row)
        given_now = by_id[there.id].said
        # A turn that is not given is recall's to say.
        said = there.said if given_now.turn_id is not None else replace(there.said, turn_id=None)
        if row.organization_id != tx.organization_id or said != given_now:
            raise message_exists(there.id)
        known[there.id] = there.sequence_id
    return known


def _insert(tx: Transaction, rows: list[Row], deferred: Deferred) -> None:
    row_ids: dict[str, int] = {row.id: row.row_id for row in tx.conn.execute(_INSERT, rows)}
    sources = [
        Source(
            row_id=row_ids[row["id"]],
            organization_id=row["organization_id"],
            agent_id=row["agent_id"],
            conversation_id=row["conversation_id"],
            role=row["role"],
            created_at=row["created_at"],
            sequence_id=row["sequence_id"],
            name=row["name"],
            text=row["search_text"],
        )
        for row in rows
        if row["search_text"]
    ]
    if sources:
        index_new(tx.conn, tx.words, sources)
        searchable = {source.row_id for source in sources}
        deferred.news.extend(id_ for id_, row_id in row_ids.items() if row_id in searchable)


def read(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> tuple[Message, ...]:
    """The messages that exist among `ids`, in the order of `ids`."""
    if not ids:
        return ()
    rows = conn.execute(_VISIBLE, {"organization": organization_id, "ids": list(ids)})
    found = {message.id: message for message in map(to_message, rows)}
    return tuple(found[id_] for id_ in ids if id_ in found)


def searchable(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> frozenset[str]:
    """Those of `ids` that a search of the organization may find."""
    if not ids:
        return frozenset()
    return frozenset(conn.execute(_FINDABLE, {"organization": organization_id, "ids": list(ids)}).scalars())


def rewrite(tx: Transaction, changed: Message) -> None:
    """Writes the content, name and error mark of a stored message anew, in place."""
    values: dict[str, Any] = {
        **content_columns(changed), "name": changed.name, "is_err": changed.is_err, "updated_at": tx.now
    }  # fmt: skip
    conn, words = tx.conn, tx.words
    conn.execute(sa.update(messages).where(_m.id == changed.id).values(values))
    conn.execute(sa.delete(tool_call_rows).where(tool_call_rows.c.message_id == changed.id))
    if calls := [{"tool_call_id": id_, "message_id": changed.id} for id_ in changed.tool_call_ids]:
        conn.execute(_CALLS, calls)
    (source,) = to_sources(conn.execute(_SOURCES, {"ids": [changed.id]}))
    if not source.text:
        words.remove(conn, [source.row_id])
    index_again(conn, words, source, kept=True)
    outbox.note_messages(conn, [changed.id], tx.now)


def delete(tx: Transaction, agent_id: str, ids: Sequence[str]) -> int:
    """Deletes messages of one agent everywhere, and their words from their neighbours' context; returns how many."""
    conn = tx.conn
    sources = to_sources(conn.execute(_SOURCES, {"ids": list(ids)})) if ids else []
    if not sources:
        return 0
    there = list(ids)
    left = set(conn.execute(sa.select(_m.turn_id).where(_m.id.in_(there), _m.turn_id.is_not(None))).scalars())
    conn.execute(sa.delete(context_entries).where(context_entries.c.message_id.in_(there)))
    conn.execute(sa.delete(tool_call_rows).where(tool_call_rows.c.message_id.in_(there)))
    conn.execute(sa.delete(trace_lines).where(trace_lines.c.message_id.in_(there)))
    conn.execute(sa.delete(messages).where(_m.id.in_(there)))
    turns.forget_empty(conn, agent_id, sorted(left))
    tx.words.remove(conn, [source.row_id for source in sources])
    for source in sources:
        index_again(conn, tx.words, source, kept=False)
    agents.count_fewer(conn, agent_id, len(sources))
    outbox.note_messages(conn, there, tx.now)
    return len(sources)


def ids_of(found: Iterable[Message]) -> list[str]:
    """Their ids, in order."""
    return [message.id for message in found]
