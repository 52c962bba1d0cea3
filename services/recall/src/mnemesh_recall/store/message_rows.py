"""Rows of messages and of turns."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_types.messages import ApprovalDecision, ContentPart, Message, Role, TextPart, ToolCall, ToolReturn

from mnemesh_recall.errors import message_exists, no_message
from mnemesh_recall.model.messages import MessageFilter, has_same_content
from mnemesh_recall.model.search import SearchScope, searchable_text, speaker_of
from mnemesh_recall.model.traces import NUMBERED_TURN, answered_calls, in_turns, opens_turn
from mnemesh_recall.store import tables, transaction
from mnemesh_recall.store.fulltext.indexing import COLUMNS as SOURCE_COLUMNS
from mnemesh_recall.store.fulltext.indexing import index_new, reindex_around, sources_from_rows
from mnemesh_recall.store.tables import agents, context_entries, contexts, messages, tool_call_rows, trace_lines, turns
from mnemesh_recall.store.transaction import Deferred, Transaction

_t, _m, _a, _r = turns.c, messages.c, agents.c, tool_call_rows.c
NEWEST_OF: Final = (
    sa.select(_t.turn_id)
    .where(_t.agent_id == contexts.c.agent_id, _t.conversation_id == contexts.c.conversation_id)
    .order_by(_t.turn_index.desc())
    .limit(1)
    .correlate(contexts)
    .scalar_subquery()
)
"""The newest turn of a conversation that a query reads from `contexts`."""
_NEWEST: Final = {
    has_conversation: sa.select(_t.turn_id)
    .where(
        _t.agent_id == sa.bindparam("agent"),
        _t.conversation_id == sa.bindparam("conversation") if has_conversation else _t.conversation_id.is_(None),
    )
    .order_by(_t.turn_index.desc())
    .limit(1)
    for has_conversation in (True, False)
}
_OF_CALL: Final = (
    sa.select(_m.turn_id)
    .join_from(tool_call_rows, messages, _m.id == _r.message_id)
    .where(_r.tool_call_id == sa.bindparam("call"), _m.agent_id == sa.bindparam("agent"), _m.turn_id.is_not(None))
    .order_by(_m.sequence_id.desc())
    .limit(1)
)
_NEXT_INDEX: Final = (
    sa.update(agents)
    .where(_a.agent_id == sa.bindparam("agent"))
    .values(last_turn_index=_a.last_turn_index + 1)
    .returning(_a.last_turn_index)
)
_EXISTS: Final = sa.select(_t.turn_id).where(_t.agent_id == sa.bindparam("agent"), _t.turn_id == sa.bindparam("turn"))
_INSERT_TURN: Final = Prepared(sa.insert(turns))


def opened_by(stored: Iterable[Message]) -> dict[str | None, str]:
    """Returns, by conversation, the last turn that one of the stored messages opened.

    An input that was stored before its step, because its first run failed, is committed with the answer to it. The
    answer belongs to the turn of the input, although the conversation may have newer turns.
    """
    return {
        message.conversation_id: message.turn_id
        for message in stored
        if message.turn_id is not None and opens_turn(message)
    }


def count_opened(batch: Sequence[Message]) -> int:
    """Returns how many turns new messages of one agent open, whatever is stored. 0 if that depends on it.

    That is so for the input of a step with the answer to it, and for messages of users.
    """
    if not batch or not opens_turn(batch[0]):
        return 0
    conversation_id = batch[0].conversation_id
    for message in batch:
        is_known = message.turn_id is None and message.conversation_id == conversation_id
        if not is_known or (opens_turn(message) and any(answered_calls(message))):
            return 0
    return sum(map(opens_turn, batch))


def assign_turns(
    tx: Transaction,
    agent_id: str,
    batch: Sequence[Message],
    newest: dict[str | None, str],
    indexes: Iterable[int] = (),
) -> list[Message]:
    """Returns new messages of one agent, in order, each with its turn. The agent's row must exist.

    A turn that a message names is kept. A tool return, or a decision on a call, belongs to the turn of its call. Every
    other message belongs to the newest turn of its conversation, and a user message starts a new one.

    Args:
        tx: the transaction.
        agent_id: the agent of all messages.
        batch: the messages.
        newest: the turn that counts as the newest of a conversation, where that is not the last one. Changed in place.
        indexes: the indexes of the turns that `count_opened` has counted.
    """
    free = iter(indexes)
    of_calls: dict[str, str] = {}
    existing: set[str] = set()
    assigned = []
    for message in batch:
        turn_id = message.turn_id
        if turn_id is not None:
            if turn_id not in existing and not _exists(tx, agent_id, turn_id):
                _insert_named(tx, agent_id, turn_id, message)
            existing.add(turn_id)
            newest[message.conversation_id] = turn_id
        elif in_turns(message):
            turn_id = _turn_of_call(tx, agent_id, message, of_calls)
            if turn_id is None:
                turn_id = _newest_turn(tx, agent_id, message, newest, free)
                newest[message.conversation_id] = turn_id
        if turn_id is not None:
            of_calls |= dict.fromkeys((call.id for call in message.tool_calls), turn_id)
        assigned.append(message if turn_id == message.turn_id else replace(message, turn_id=turn_id))
    return assigned


def delete_empty(conn: sa.Connection, agent_id: str, turn_ids: Sequence[str]) -> None:
    """Deletes those of the turns that have no message. Their indexes are never used again."""
    if turn_ids:
        has_message = sa.exists().where(_m.agent_id == _t.agent_id, _m.turn_id == _t.turn_id)
        conn.execute(sa.delete(turns).where(_t.agent_id == agent_id, _t.turn_id.in_(turn_ids), ~has_message))


def _turn_of_call(tx: Transaction, agent_id: str, message: Message, of_calls: dict[str, str]) -> str | None:
    for call_id in answered_calls(message):
        if call_id in of_calls:
            return of_calls[call_id]
        turn_id = tx.conn.scalar(_OF_CALL, {"call": call_id, "agent": agent_id})
        if turn_id is not None:
            return str(turn_id)
    return None


def _newest_turn(
    tx: Transaction, agent_id: str, message: Message, newest: dict[str | None, str], free: Iterator[int]
) -> str:
    conversation_id = message.conversation_id
    if not opens_turn(message):
        if conversation_id in newest:
            return newest[conversation_id]
        parameters = {"agent": agent_id, "conversation": conversation_id}
        if conversation_id is None:
            del parameters["conversation"]
        found = tx.conn.scalar(_NEWEST[conversation_id is not None], parameters)
        if found is not None:
            return str(found)
    index = next(free, None) or int(tx.conn.execute(_NEXT_INDEX, {"agent": agent_id}).scalar_one())
    turn_id = f"turn_{index:04d}"
    _insert_turn(tx, agent_id, turn_id, index, message)
    return turn_id


def _insert_named(tx: Transaction, agent_id: str, turn_id: str, first: Message) -> None:
    """Inserts a turn whose id the caller chose. An id of the form turn_0007 keeps its index if that is free."""
    numbered = NUMBERED_TURN.fullmatch(turn_id)
    requested = int(numbered[1]) if numbered else 0
    last = int(tx.conn.execute(sa.select(_a.last_turn_index).where(_a.agent_id == agent_id)).scalar_one())
    taken = sa.select(_t.turn_id).where(_t.agent_id == agent_id, _t.turn_index == requested)
    index = requested if requested > last or (requested and tx.conn.scalar(taken) is None) else last + 1
    if index > last:
        tx.conn.execute(sa.update(agents).where(_a.agent_id == agent_id).values(last_turn_index=index))
    _insert_turn(tx, agent_id, turn_id, index, first)


def _exists(tx: Transaction, agent_id: str, turn_id: str) -> bool:
    return tx.conn.scalar(_EXISTS, {"agent": agent_id, "turn": turn_id}) is not None


def _insert_turn(tx: Transaction, agent_id: str, turn_id: str, index: int, first: Message) -> None:
    _INSERT_TURN.send(
        tx.conn,
        {
            "agent_id": agent_id,
            "turn_index": index,
            "turn_id": turn_id,
            "organization_id": tx.organization_id,
            "conversation_id": first.conversation_id,
            "started_at": first.created_at,
        },
    )


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

    counters: transaction.Counters | Answer
    """Those of the agent, or the answer to `transaction.ask_agent`."""
    newest_turns: Mapping[str | None, str]
    """The newest turns of conversations."""


def ask_known(tx: Transaction, batch: Sequence[Message]) -> Answer:
    """Asks for the stored messages among `batch`, for `store`."""
    return _BY_ID[tx.conn.dialect.name].send(tx.conn, tables.listed(tx.conn, ids_of(batch)))


def store(
    tx: Transaction,
    agent_id: str,
    batch: Sequence[Message],
    known: Answer | None = None,
    before: Before | None = None,
) -> Stored:
    """Stores the messages that do not exist yet, each under the next sequence id of the agent.

    `known` is the answer to `ask_known`, if the caller has asked, and `before` what else it has read.

    Raises:
        AlreadyExists: an id belongs to other content.
        NotFound, Erased: the agent cannot be written, or an id belongs to another organization.
    """
    deferred = Deferred()
    rows = [message_to_row(message, tx.organization_id) for message in batch]
    stored = store_rows(tx, agent_id, batch, rows, deferred, known or ask_known(tx, batch), before)
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
    opened = count_opened(new_messages)
    known_counters = None if before is None else before.counters
    counters = transaction.take_sequence_ids(tx, agent_id, len(new), opened, before=known_counters)
    first = counters.last_sequence_id - len(new) + 1
    assigned = {message.id: first + index for index, (message, _) in enumerate(new)}
    if new:
        indexes = range(counters.last_turn_index - opened + 1, counters.last_turn_index + 1)
        newest = {} if before is None else dict(before.newest_turns)
        placed = assign_turns(tx, agent_id, new_messages, newest | opened_by(stored_before), indexes)
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
    delete_empty(conn, agent_id, sorted(turn_ids))
    tx.words.remove(conn, sources)
    for source in sources:
        reindex_around(conn, tx.words, source, exists=False)
    transaction.subtract_messages(conn, agent_id, len(sources))
    transaction.add_message_changes(conn, deleted, tx.now)
    return len(sources)


def ids_of(batch: Iterable[Message]) -> list[str]:
    """Returns the ids of messages, in order."""
    return [message.id for message in batch]
