"""Agents as recall knows them: whose they are, the numbers of their messages, and whether they were erased."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa

from mnemesh_recall.errors import Erased, no_agent
from mnemesh_recall.store.sql.tables import agents
from mnemesh_recall.store.sql.transaction import Transaction

_a = agents.c


class Numbers(NamedTuple):
    """What an agent counts: the last sequence id given, and the rows it has."""

    last_sequence_id: int
    message_count: int


_TAKE: Final = (
    sa.update(agents)
    .where(
        _a.agent_id == sa.bindparam("agent"), _a.organization_id == sa.bindparam("organization"), _a.erased_at.is_(None)
    )
    .values(
        last_sequence_id=_a.last_sequence_id + sa.bindparam("more", type_=sa.BigInteger),
        message_count=_a.message_count + sa.bindparam("more", type_=sa.BigInteger),
    )
    .returning(_a.last_sequence_id, _a.message_count)
)
_FIND: Final = sa.select(_a.organization_id, _a.erased_at).where(_a.agent_id == sa.bindparam("agent"))
_FORGET: Final = (
    sa.update(agents)
    .where(_a.agent_id == sa.bindparam("agent"))
    .values(message_count=_a.message_count - sa.bindparam("fewer", type_=sa.BigInteger))
)


def take_numbers(tx: Transaction, agent_id: str, more: int) -> Numbers:
    """Counts `more` messages of the agent, which is made when it is first seen.

    Raises:
        NotFound: the agent is another organization's.
        Erased: it was erased.
    """
    taken = {"agent": agent_id, "organization": tx.organization_id, "more": more}
    row = tx.conn.execute(_TAKE, taken).first()
    if row is None:
        require_writable(tx.conn, tx.organization_id, agent_id)
        add(tx, agent_id)
        row = tx.conn.execute(_TAKE, taken).one()
    return Numbers(*row)


def require_writable(conn: sa.Connection, organization_id: str, agent_id: str) -> bool:
    """Whether the agent is known.

    Raises:
        NotFound: it is another organization's.
        Erased: it was erased.
    """
    found = conn.execute(_FIND, {"agent": agent_id}).first()
    if found is None:
        return False
    if found.organization_id != organization_id:
        raise no_agent(agent_id)
    if found.erased_at is not None:
        raise Erased(agent_id)
    return True


def add(tx: Transaction, agent_id: str, erased_at: datetime | None = None) -> None:
    """Makes the agent's row."""
    tx.conn.execute(
        sa.insert(agents).values(
            agent_id=agent_id,
            organization_id=tx.organization_id,
            last_sequence_id=0,
            message_count=0,
            created_at=tx.now,
            erased_at=erased_at,
        )
    )


def count_fewer(conn: sa.Connection, agent_id: str, fewer: int) -> None:
    """Counts deleted messages out; their numbers are never given again."""
    if fewer:
        conn.execute(_FORGET, {"agent": agent_id, "fewer": fewer})
