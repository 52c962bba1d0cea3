"""The rows of messages: their conversion, the conditions of lists and searches, writes and reads."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_types.messages import ApprovalDecision, ContentPart, Message, Role, TextPart, ToolCall, ToolReturn

from mnemesh_recall.errors import message_exists, no_message
from mnemesh_recall.model.messages import MessageFilter, has_same_content
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.model.searchable_text import searchable_text, speaker_of
from mnemesh_recall.store import agents, tables, transaction, turns
from mnemesh_recall.store.fulltext.indexing import COLUMNS as SOURCE_COLUMNS
from mnemesh_recall.store.fulltext.indexing import index_new, reindex_around, sources_from_rows
from mnemesh_recall.store.tables import context_entries, messages, tool_call_rows, trace_lines
from mnemesh_recall.store.transaction import Deferred, Transaction

Row = dict[str, Any]
AnyRow = sa.Row[*tuple[Any, ...]]

COLUMNS: Final = tuple(
    column for column in messages.c if column.name not in ("organization_id", "search_text", "speaker", "row_id")
)
"""The columns that `message_from_row` reads, in its order."""

_CONTENT: Final = (
    "id", "agent_id", "role", "name", "otid", "sender_id", "group_id", "model", "step_id", "run_id", "turn_id",
    "is_err", "is_event", "carried", "approval_request_id", "content", "tool_calls", "tool_returns",
    "approval_decisions",
)  # fmt: skip
"""The columns by which a step is recognized. Times and numbers are not among them: a repeated commit has others."""

_encode: Final = msgspec.json.Encoder().encode
_parts: Final = msgspec.json.Decoder(tuple[ContentPart, ...]).decode
_calls: Final = msgspec.json.Decoder(tuple[ToolCall, ...]).decode
_returns: Final = msgspec.json.Decoder(tuple[ToolReturn, ...]).decode
_decisions: Final = msgspec.json.Decoder(tuple[ApprovalDecision, ...]).decode
_ROLES: Final = {role.value: role for role in Role}


def message_to_row(message: Message, organization_id: str) -> Row:
    """Returns the columns of a message, with the sequence id of the message."""
    return {
        "id": message.id,
        "organization_id": organization_id,
        "agent_id": message.agent_id,
        "sequence_id": message.sequence_id,
        "conversation_id": message.conversation_id,
        "role": message.role.value,
        "name": message.name,
        "otid": message.otid,
        "sender_id": message.sender_id,
        "group_id": message.group_id,
        "model": message.model,
        "step_id": message.step_id,
        "run_id": message.run_id,
        "turn_id": message.turn_id,
        "is_err": message.is_err,
        "is_event": message.is_event,
        "approval_request_id": message.approval_request_id,
        "created_at": message.created_at,
        "updated_at": message.updated_at,
        **content_columns(message),
    }


def content_columns(message: Message) -> Row:
    """Returns the columns with the content of a message, and those that derive from its content and name."""
    text = searchable_text(message)
    return {
        "carried": message.carried,
        "content": _json(message.content),
        "tool_calls": _json(message.tool_calls),
        "tool_returns": _json(message.tool_returns),
        "approval_decisions": _json(message.approval_decisions),
        "search_text": text.casefold() or None,
        "speaker": (text and speaker_of(message, text).casefold()) or None,
    }


def text_content(text: str) -> str | None:
    """Returns the content column of a message that consists of one text."""
    return _json((TextPart(text),))


def fingerprint(*groups: Sequence[Row]) -> str:
    """Returns a hash of the content of groups of rows. Rows that differ only in times and numbers have the same."""
    content = [[[row[name] for name in _CONTENT] for row in group] for group in groups]
    return hashlib.sha256(_encode(content)).hexdigest()


def message_from_row(row: AnyRow) -> Message:
    """Returns the message of a row that selects COLUMNS first."""
    (
        id_, agent_id, sequence_id, conversation_id, role, name, otid, sender_id, group_id, model, step_id, run_id,
        turn_id, is_err, is_event, carried, approval_request_id, created_at, updated_at, content, calls, returns,
        decisions,
    ) = row[:23]  # fmt: skip
    return Message(
        id=id_,
        agent_id=agent_id,
        role=_ROLES[role],
        created_at=created_at,
        content=_parts(content) if content else (),
        tool_calls=_calls(calls) if calls else (),
        tool_returns=_returns(returns) if returns else (),
        approval_decisions=_decisions(decisions) if decisions else (),
        approval_request_id=approval_request_id,
        name=name,
        otid=otid,
        sender_id=sender_id,
        group_id=group_id,
        model=model,
        step_id=step_id,
        run_id=run_id,
        turn_id=turn_id,
        is_err=is_err,
        is_event=is_event,
        carried=carried,
        conversation_id=conversation_id,
        updated_at=updated_at,
        sequence_id=sequence_id,
    )


def _json(items: Sequence[Any]) -> str | None:
    return _encode(items).decode() if items else None


Condition = sa.ColumnElement[bool]
_m = messages.c


def owned(organization_id: str | sa.BindParameter[str], *, narrowed: bool = True) -> Condition:
    """Returns the condition that a message belongs to the organization.

    If another condition narrows the query (ids, an agent, a run), the column is hidden from the planner: without
    statistics it would read the organization's index instead of a few rows by id.
    """
    column = _m.organization_id.concat("") if narrowed else _m.organization_id
    return column == organization_id


def has_index(filter_: MessageFilter) -> bool:
    """Returns whether one of the conditions has its own index."""
    return bool(
        filter_.agent_ids
        or filter_.conversation_ids
        or filter_.run_id
        or filter_.step_id
        or filter_.group_id
        or filter_.turn_id
        or filter_.otid
        or filter_.tool_call_id
    )


def list_conditions(filter_: MessageFilter) -> Iterator[Condition]:
    """Yields the conditions of a list, without that of the organization."""
    if filter_.agent_ids:
        yield _one_of(_m.agent_id, filter_.agent_ids)
    if filter_.conversation_ids:
        yield _one_of(_m.conversation_id, filter_.conversation_ids)
    if filter_.roles:
        yield _m.role.in_([role.value for role in filter_.roles])
    for column, value in (
        (_m.run_id, filter_.run_id),
        (_m.step_id, filter_.step_id),
        (_m.group_id, filter_.group_id),
        (_m.turn_id, filter_.turn_id),
        (_m.otid, filter_.otid),
    ):
        if value is not None:
            yield column == value
    if not filter_.include_err:
        yield sa.or_(_m.is_err.is_(None), _m.is_err.is_(sa.false()))
    if filter_.tool_call_id is not None:
        rows = tool_call_rows.c
        yield _m.id.in_(sa.select(rows.message_id).where(rows.tool_call_id == filter_.tool_call_id))
    if filter_.text is not None:
        yield _m.search_text.contains(filter_.text.casefold(), autoescape=True)
    if filter_.from_time is not None:
        yield _m.created_at >= filter_.from_time
    if filter_.until_time is not None:
        yield _m.created_at <= filter_.until_time
    if filter_.after_sequence_id is not None:
        yield _m.sequence_id > filter_.after_sequence_id
    if filter_.until_sequence_id is not None:
        yield _m.sequence_id <= filter_.until_sequence_id


def scope_conditions(organization_id: str, scope: SearchScope) -> Iterator[Condition]:
    yield owned(organization_id, narrowed=scope.agent_id is not None)
    for column, value in ((_m.agent_id, scope.agent_id), (_m.conversation_id, scope.conversation_id)):
        if value is not None:
            yield column == value
    if scope.roles:
        yield _m.role.in_([role.value for role in scope.roles])
    if scope.from_time is not None:
        yield _m.created_at >= scope.from_time
    if scope.before_time is not None:
        yield _m.created_at < scope.before_time
    if scope.exclude_ids:
        yield _m.id.not_in(scope.exclude_ids)
    if scope.speakers:
        yield _m.speaker.in_([name.casefold() for name in scope.speakers])
    if scope.sender_ids:
        yield _m.sender_id.in_(scope.sender_ids)


def _one_of(column: sa.Column[str], values: tuple[str, ...]) -> Condition:
    # With one value, an equality lets the index also provide the order.
    return column == values[0] if len(values) == 1 else column.in_(values)


_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("organization")
_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("ids", expanding=True)

_BY_ID: Final = {
    dialect: Prepared(sa.select(*COLUMNS, _m.organization_id).where(is_one_of))
    for dialect, is_one_of in tables.among(_m.id).items()
}
_VISIBLE: Final = {
    dialect: Prepared(sa.select(*COLUMNS).where(owned(_ORGANIZATION), is_one_of))
    for dialect, is_one_of in tables.among(_m.id).items()
}
# On SQLite, RETURNING takes longer than the insertion.
_INSERT: Final[Mapping[str, Prepared[Any]]] = {
    "sqlite": Prepared(sa.insert(messages)),
    "postgresql": Prepared(sa.insert(messages).returning(_m.row_id)),
}
_SOURCES: Final = sa.select(*SOURCE_COLUMNS).where(_m.id.in_(_IDS))
_INSERT_CALLS: Final = Prepared(sa.insert(tool_call_rows))


class Stored(NamedTuple):
    """The result of storing messages: a sequence id for each of them, and the ids that existed before."""

    sequence_ids: tuple[int, ...]
    known_ids: frozenset[str]
    agent_message_count: int


class Before(NamedTuple):
    """What a transaction has read before it stores messages."""

    counters: agents.Counters
    newest_turns: Mapping[str | None, str]
    """The newest turns of conversations."""


def ask_known(tx: Transaction, batch: Sequence[Message]) -> Answer:
    """Asks for the stored messages among `batch`, for `store`."""
    return _BY_ID[tx.conn.dialect.name].send(tx.conn, tables.listed(tx.conn, ids_of(batch)))


def store(tx: Transaction, agent_id: str, batch: Sequence[Message], known: Answer | None = None) -> Stored:
    """Stores the messages that do not exist yet, each under the next sequence id of the agent.

    `known` is the answer to `ask_known`, if the caller has asked.

    Raises:
        AlreadyExists: an id belongs to other content.
        NotFound, Erased: the agent cannot be written, or an id belongs to another organization.
    """
    deferred = Deferred()
    rows = [message_to_row(message, tx.organization_id) for message in batch]
    stored = store_rows(tx, agent_id, batch, rows, deferred, known or ask_known(tx, batch))
    index_new(tx.conn, tx.words, deferred.sources())
    write_deferred(tx, deferred)
    return stored


def write_deferred(tx: Transaction, deferred: Deferred) -> None:
    """Writes the rows that `store_rows` deferred, except for words."""
    _INSERT_CALLS.send_each(tx.conn, deferred.calls)
    transaction.add_message_changes(tx.conn, [row["id"] for row in deferred.searchable], tx.now)


def store_rows(
    tx: Transaction,
    agent_id: str,
    batch: Sequence[Message],
    rows: Sequence[Row],
    deferred: Deferred,
    asked: Answer | None,
    before: Before | None = None,
) -> Stored:
    """Stores messages as `store` does, and leaves the deferred rows and the words to the caller.

    Args:
        tx: the transaction.
        agent_id: the agent of all messages.
        batch: the messages.
        rows: their rows, in the same order.
        deferred: receives the rows that the caller writes at the end.
        asked: the answer to `ask_known`; None if none of the messages exists.
        before: what else the caller has read in the transaction; None if it has read nothing.
    """
    stored_before = () if asked is None else _known_messages(tx, batch, asked)
    known = {message.id: message.sequence_id for message in stored_before}
    new = [(message, row) for message, row in zip(batch, rows, strict=True) if message.id not in known]
    new_messages = [message for message, _ in new]
    opened = turns.count_opened(new_messages)
    known_counters = None if before is None else before.counters
    counters = agents.take_sequence_ids(tx, agent_id, len(new), opened, before=known_counters)
    first = counters.last_sequence_id - len(new) + 1
    assigned = {message.id: first + index for index, (message, _) in enumerate(new)}
    if new:
        indexes = range(counters.last_turn_index - opened + 1, counters.last_turn_index + 1)
        newest = {} if before is None else dict(before.newest_turns)
        placed = turns.assign_turns(tx, agent_id, new_messages, newest | turns.opened_by(stored_before), indexes)
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


def _known_messages(tx: Transaction, batch: Sequence[Message], asked: Answer) -> list[Message]:
    """Returns the stored messages among `batch`, by sequence id. Raises AlreadyExists for one with other content."""
    by_id = {message.id: message for message in batch}
    known = []
    for row in asked.all():
        stored = message_from_row(row)
        if row.organization_id != tx.organization_id:
            raise no_message(stored.id)
        if not has_same_content(stored, by_id[stored.id]):
            raise message_exists(stored.id)
        known.append(stored)
    return sorted(known, key=lambda message: message.sequence_id)


def _insert(tx: Transaction, rows: list[Row], deferred: Deferred) -> None:
    statement = _INSERT[tx.conn.dialect.name]
    for row in rows:
        answer = statement.send(tx.conn, row)
        if row["search_text"]:
            deferred.searchable.append(row)
            deferred.inserted.append(answer)


def read(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> tuple[Message, ...]:
    """Returns the messages that exist among `ids`, in the order of `ids`."""
    if not ids:
        return ()
    parameters = {"organization": organization_id, **tables.listed(conn, ids)}
    selected = _VISIBLE[conn.dialect.name].all(conn, parameters)
    found = {message.id: message for message in map(message_from_row, selected)}
    return tuple(found[id_] for id_ in ids if id_ in found)


def newest(conn: sa.Connection, organization_id: str, scope: SearchScope, limit: int) -> list[Message]:
    """Returns the newest searchable messages of a scope, the newest first."""
    order = _m.row_id if scope.agent_id is None else _m.sequence_id
    statement = (
        sa.select(*COLUMNS)
        .where(_m.search_text.is_not(None), *scope_conditions(organization_id, scope))
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
    _INSERT_CALLS.send_each(conn, [{"tool_call_id": id_, "message_id": changed.id} for id_ in changed.tool_call_ids])
    (source,) = sources_from_rows(conn.execute(_SOURCES, {"ids": [changed.id]}))
    if not source.text:
        tx.words.remove(conn, [source])
    reindex_around(conn, tx.words, source, exists=True)
    transaction.add_message_changes(conn, [changed.id], tx.now)


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
    tx.words.remove(conn, sources)
    for source in sources:
        reindex_around(conn, tx.words, source, exists=False)
    agents.subtract_messages(conn, agent_id, len(sources))
    transaction.add_message_changes(conn, deleted, tx.now)
    return len(sources)


def ids_of(batch: Iterable[Message]) -> list[str]:
    """Returns the ids of messages, in order."""
    return [message.id for message in batch]
