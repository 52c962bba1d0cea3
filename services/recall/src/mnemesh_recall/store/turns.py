"""Assignment of messages to turns, in the transaction that stores them. The turn of a message never changes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_types.messages import Message

from mnemesh_recall.model.traces import NUMBERED_TURN, answered_calls, in_turns, opens_turn
from mnemesh_recall.store.tables import agents, contexts, messages, tool_call_rows, turns
from mnemesh_recall.store.transaction import Transaction

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
_INSERT: Final = Prepared(sa.insert(turns))


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
    _insert(tx, agent_id, turn_id, index, message)
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
    _insert(tx, agent_id, turn_id, index, first)


def _exists(tx: Transaction, agent_id: str, turn_id: str) -> bool:
    return tx.conn.scalar(_EXISTS, {"agent": agent_id, "turn": turn_id}) is not None


def _insert(tx: Transaction, agent_id: str, turn_id: str, index: int, first: Message) -> None:
    _INSERT.send(
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
