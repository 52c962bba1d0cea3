"""A write transaction, and the changes for the outbox of the vector index in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_retrieval.indexing.outbox import add_group, change_rows

from mnemesh_recall.errors import Erased, no_agent
from mnemesh_recall.store.fulltext.documents import SearchableMessage
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.tables import agents, index_tables

MESSAGES: Final = "messages"
"""Subjects are the ids of messages; groups are the ids of erased agents."""
MEMORIES: Final = "memories"
"""Subjects are the ids of episodes and facts."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One write transaction, for one organization, at one time."""

    conn: sa.Connection
    words: WordIndex
    organization_id: str
    now: datetime


@dataclass(frozen=True, slots=True)
class Deferred:
    """Rows that are written at the end of the transaction, because no statement in it reads them."""

    calls: list[dict[str, str]] = field(default_factory=list)
    """Rows of `tool_call_rows`."""
    searchable: list[Mapping[str, Any]] = field(default_factory=list)
    """The rows of new messages to index, in order of their sequence ids."""
    inserted: list[Answer] = field(default_factory=list)
    """The answers to the insertions of these rows."""

    def sources(self) -> list[SearchableMessage]:
        """Returns the new messages to index."""
        return [
            SearchableMessage(
                row_id=answer.row_id(),
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
            for row, answer in zip(self.searchable, self.inserted, strict=True)
        ]


_INSERT: Final = Prepared(sa.insert(index_tables.changes))


def add_message_changes(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Adds changes for messages that were stored, changed or deleted."""
    if ids:
        _INSERT.send_each(conn, change_rows(MESSAGES, ids, now))


def add_memory_changes(conn: sa.Connection, ids: Sequence[str], now: datetime) -> None:
    """Adds changes for episodes and facts that were stored, changed or deleted."""
    if ids:
        _INSERT.send_each(conn, change_rows(MEMORIES, ids, now))


def add_agent_change(conn: sa.Connection, agent_id: str, now: datetime) -> None:
    """Adds a change for the erasure of an agent."""
    add_group(conn, index_tables, MESSAGES, agent_id, now)


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
)
_FIND: Final = Prepared(
    sa.select(_a.organization_id, _a.erased_at, *(_a[name] for name in Counters._fields)).where(
        _a.agent_id == sa.bindparam("agent")
    )
)
_INSERT_AGENT: Final = Prepared(sa.insert(agents))
_SUBTRACT: Final = (
    sa.update(agents)
    .where(_a.agent_id == sa.bindparam("agent"))
    .values(message_count=_a.message_count - sa.bindparam("fewer", type_=sa.BigInteger))
)


def ask_agent(tx: Transaction, agent_id: str) -> Answer:
    """Asks for the agent's row, for `take_sequence_ids`, before the transaction has written."""
    return _FIND.send(tx.conn, {"agent": agent_id})


def take_sequence_ids(
    tx: Transaction, agent_id: str, count: int, turns: int = 0, *, before: Counters | Answer | None = None
) -> Counters:
    """Assigns `count` sequence ids and `turns` turn indexes, and counts as many messages.

    Creates the agent's row at its first use. `before` is what the transaction has read of the agent: its counters, or
    the answer to `ask_agent`. A transaction in which another one changed them is not committed.

    Raises:
        NotFound: the agent is another organization's.
        Erased: it was erased.
    """
    if not isinstance(before, Counters):
        found = (before or ask_agent(tx, agent_id)).first()
        if not _require_writable(found, tx.organization_id, agent_id):
            counters = Counters(last_sequence_id=count, message_count=count, last_turn_index=turns)
            insert(tx, agent_id, counters=counters)
            return counters
        before = Counters(*(getattr(found, name) for name in Counters._fields))
    parameters = {"agent": agent_id, "organization": tx.organization_id, "more": count, "turns": turns}
    _TAKE.send(tx.conn, parameters)
    return Counters(before.last_sequence_id + count, before.message_count + count, before.last_turn_index + turns)


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
    _INSERT_AGENT.send(tx.conn, row)


def subtract_messages(conn: sa.Connection, agent_id: str, count: int) -> None:
    """Subtracts deleted messages from the count. Their sequence ids are never used again."""
    if count:
        conn.execute(_SUBTRACT, {"agent": agent_id, "fewer": count})
