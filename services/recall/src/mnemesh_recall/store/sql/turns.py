"""Which turn a message belongs to: given when it is stored, in the writing transaction, and never changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from mnemesh_recall.model.messages import Message
from mnemesh_recall.model.traces import answered_calls, in_turns, opens_turn
from mnemesh_recall.store.sql.tables import agents, messages, tool_call_rows, turns
from mnemesh_recall.store.sql.transaction import Transaction

_t, _m, _a, _r = turns.c, messages.c, agents.c, tool_call_rows.c
_NUMBERED: Final = re.compile(r"turn_(\d{4,18})")
_CURRENT: Final = {
    known: sa.select(_t.turn_id)
    .where(
        _t.agent_id == sa.bindparam("agent"),
        _t.conversation_id == sa.bindparam("conversation") if known else _t.conversation_id.is_(None),
    )
    .order_by(_t.turn_index.desc())
    .limit(1)
    for known in (True, False)
}
_OF_CALL: Final = (
    sa.select(_m.turn_id)
    .join_from(tool_call_rows, messages, _m.id == _r.message_id)
    .where(_r.tool_call_id == sa.bindparam("call"), _m.agent_id == sa.bindparam("agent"), _m.turn_id.is_not(None))
    .order_by(_m.sequence_id.desc())
    .limit(1)
)
_COUNT: Final = (
    sa.update(agents)
    .where(_a.agent_id == sa.bindparam("agent"))
    .values(last_turn_index=_a.last_turn_index + 1)
    .returning(_a.last_turn_index)
)
_KNOWN: Final = sa.select(_t.turn_id).where(_t.agent_id == sa.bindparam("agent"), _t.turn_id == sa.bindparam("turn"))
_OPEN: Final = sa.insert(turns)


def placed(tx: Transaction, agent_id: str, fresh: Sequence[Message]) -> list[Message]:
    """New messages of one agent, in order, each with the turn that it belongs to; its agent must be there.

    A tool result, or a decision on a call, belongs to the turn of its call, however late it comes. What else an agent
    says belongs to the newest turn of its conversation. A turn that a message names is kept.
    """
    current: dict[str | None, str] = {}
    of_calls: dict[str, str] = {}
    known: set[str] = set()
    found = []
    for message in fresh:
        turn_id = message.turn_id
        if turn_id is not None:
            if turn_id not in known and not _is_known(tx, agent_id, turn_id):
                open_named(tx, agent_id, turn_id, message)
            known.add(turn_id)
            current[message.conversation_id] = turn_id
        elif in_turns(message):
            turn_id = _of_call(tx, agent_id, message, of_calls)
            if turn_id is None:
                turn_id = _current(tx, agent_id, message, current)
                current[message.conversation_id] = turn_id
        if turn_id is not None:
            of_calls |= dict.fromkeys((call.id for call in message.tool_calls), turn_id)
        found.append(message if turn_id == message.turn_id else replace(message, turn_id=turn_id))
    return found


def _of_call(tx: Transaction, agent_id: str, message: Message, of_calls: dict[str, str]) -> str | None:
    for call_id in answered_calls(message):
        if call_id in of_calls:
            return of_calls[call_id]
        turn_id = tx.conn.scalar(_OF_CALL, {"call": call_id, "agent": agent_id})
        if turn_id is not None:
            return str(turn_id)
    return None


def _current(tx: Transaction, agent_id: str, message: Message, current: dict[str | None, str]) -> str:
    conversation_id = message.conversation_id
    if not opens_turn(message):
        if conversation_id in current:
            return current[conversation_id]
        asked = {"agent": agent_id, "conversation": conversation_id}
        if conversation_id is None:
            del asked["conversation"]
        newest = tx.conn.scalar(_CURRENT[conversation_id is not None], asked)
        if newest is not None:
            return str(newest)
    index = int(tx.conn.execute(_COUNT, {"agent": agent_id}).scalar_one())
    turn_id = f"turn_{index:04d}"
    _open(tx, agent_id, turn_id, index, message)
    return turn_id


def open_named(tx: Transaction, agent_id: str, turn_id: str, first: Message) -> None:
    """Opens a turn under a name from elsewhere; one that is a number keeps it where it is free."""
    numbered = _NUMBERED.fullmatch(turn_id)
    wanted = int(numbered[1]) if numbered else 0
    last = int(tx.conn.execute(sa.select(_a.last_turn_index).where(_a.agent_id == agent_id)).scalar_one())
    taken = sa.select(_t.turn_id).where(_t.agent_id == agent_id, _t.turn_index == wanted)
    index = wanted if wanted > last or (wanted and tx.conn.scalar(taken) is None) else last + 1
    bound = max(last, index)
    if bound != last:
        tx.conn.execute(sa.update(agents).where(_a.agent_id == agent_id).values(last_turn_index=bound))
    _open(tx, agent_id, turn_id, index, first)


def forget_empty(conn: sa.Connection, agent_id: str, turn_ids: Sequence[str]) -> None:
    """Forgets turns whose last message was deleted; their numbers are never given again."""
    if turn_ids:
        left = sa.exists().where(_m.agent_id == _t.agent_id, _m.turn_id == _t.turn_id)
        conn.execute(sa.delete(turns).where(_t.agent_id == agent_id, _t.turn_id.in_(turn_ids), ~left))


def _is_known(tx: Transaction, agent_id: str, turn_id: str) -> bool:
    return tx.conn.scalar(_KNOWN, {"agent": agent_id, "turn": turn_id}) is not None


def _open(tx: Transaction, agent_id: str, turn_id: str, index: int, first: Message) -> None:
    tx.conn.execute(
        _OPEN,
        {
            "agent_id": agent_id,
            "turn_index": index,
            "turn_id": turn_id,
            "organization_id": tx.organization_id,
            "conversation_id": first.conversation_id,
            "started_at": first.created_at,
        },
    )
