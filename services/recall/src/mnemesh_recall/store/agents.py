"""Rows of agents: their organization, their counters, and their tombstones."""

from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared

from mnemesh_recall.errors import Erased, no_agent
from mnemesh_recall.store.tables import agents
from mnemesh_recall.store.transaction import Transaction

_a = agents.c


class Counters(NamedTuple):
    """The last sequence id and turn index that an agent assigned, and the number of its messages."""

    last_sequence_id: int
    message_count: int
    last_turn_index: int


_TAKE: Final = Prepared(
    sa.update(agents)
    .where(
        _a.agent_id == sa.bindparam("agent"), _a.organization_id == sa.bindparam("organization"), _a.erased_at.is_(None)
    )
    .values(
        last_sequence_id=_a.last_sequence_id + sa.bindparam("more", type_=sa.BigInteger),
        message_count=_a.message_count + sa.bindparam("more", type_=sa.BigInteger),
        last_turn_index=_a.last_turn_index + sa.bindparam("turns", type_=sa.BigInteger),
    )
    .returning(_a.last_sequence_id, _a.message_count, _a.last_turn_index)
)
_FIND: Final = Prepared(sa.select(_a.organization_id, _a.erased_at).where(_a.agent_id == sa.bindparam("agent")))
_INSERT: Final = Prepared(sa.insert(agents))
_SUBTRACT: Final = (
    sa.update(agents)
    .where(_a.agent_id == sa.bindparam("agent"))
    .values(message_count=_a.message_count - sa.bindparam("fewer", type_=sa.BigInteger))
)


def take_sequence_ids(
    tx: Transaction, agent_id: str, count: int, turns: int = 0, *, before: Counters | None = None
) -> Counters:
    """Assigns `count` sequence ids and `turns` turn indexes, and counts as many messages.

    Creates the agent's row at its first use. With `before`, the counters of the agent that the transaction has read,
    the database is not awaited: a transaction in which another one changed them is not committed.

    Raises:
        NotFound: the agent is another organization's.
        Erased: it was erased.
    """
    parameters = {"agent": agent_id, "organization": tx.organization_id, "more": count, "turns": turns}
    taken = _TAKE.send(tx.conn, parameters)
    if before is not None:
        return Counters(before.last_sequence_id + count, before.message_count + count, before.last_turn_index + turns)
    found = _FIND.send(tx.conn, {"agent": agent_id})
    row = taken.first()
    if row is None:
        _require_writable(found.first(), tx.organization_id, agent_id)
        counters = Counters(last_sequence_id=count, message_count=count, last_turn_index=turns)
        insert(tx, agent_id, counters=counters)
        return counters
    return Counters._make(row)


def require_writable(conn: sa.Connection, organization_id: str, agent_id: str) -> bool:
    """Returns whether the agent has a row.

    Raises:
        NotFound: it is another organization's.
        Erased: it was erased.
    """
    return _require_writable(_FIND.first(conn, {"agent": agent_id}), organization_id, agent_id)


def _require_writable(found: Any, organization_id: str, agent_id: str) -> bool:
    if found is None:
        return False
    if found.organization_id != organization_id:
        raise no_agent(agent_id)
    if found.erased_at is not None:
        raise Erased(agent_id)
    return True


def insert(
    tx: Transaction,
    agent_id: str,
    *,
    erased_at: datetime | None = None,
    counters: Counters = Counters(0, 0, 0),  # noqa: B008 -- a tuple
) -> None:
    """Inserts the agent's row."""
    row = {
        "agent_id": agent_id,
        "organization_id": tx.organization_id,
        "created_at": tx.now,
        "erased_at": erased_at,
        **counters._asdict(),
    }
    _INSERT.send(tx.conn, row)


def subtract_messages(conn: sa.Connection, agent_id: str, count: int) -> None:
    """Subtracts deleted messages from the count. Their sequence ids are never used again."""
    if count:
        conn.execute(_SUBTRACT, {"agent": agent_id, "fewer": count})
