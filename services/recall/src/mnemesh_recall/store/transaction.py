"""A write transaction, and the changes for the outbox of the vector index in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_retrieval.indexing.outbox import add_group, change_rows

from mnemesh_recall.store.fulltext.documents import SearchableMessage
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.tables import index_tables

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
