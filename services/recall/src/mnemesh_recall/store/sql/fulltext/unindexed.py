"""The messages that are not in the word index yet: the commit of a step notes them, and they are indexed soon after.

A commit is part of every turn, and indexing its words would take as long as the rest of it. Later, the messages of
several commits are indexed together, and each document is written once, with the words of the messages after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
import structlog
from mnemesh_kit.sql import Database, DatabaseFull
from mnemesh_kit.sql.prepared import Prepared

from mnemesh_recall.store.sql.fulltext.dialogues import index_page
from mnemesh_recall.store.sql.fulltext.documents import FulltextIndex, SearchableMessage
from mnemesh_recall.store.sql.tables import AGENT, unindexed_agents, word_rebuilds

MOST_MESSAGES: Final = 32
"""The number of messages after which a transaction ends: about 10 ms, so that commits do not wait long."""
MOST_AGENTS: Final = 16
"""The largest number of agents whose messages one transaction indexes."""
WAIT_SECONDS: Final = 1.0
"""How long a search indexes messages before it looks for them."""

_u = unindexed_agents.c
_NOTE: Final = Prepared(
    sa.text(
        "INSERT INTO unindexed_agents (agent_id, organization_id, position, since)"
        " VALUES (:agent_id, :organization_id, :position, :since) ON CONFLICT DO NOTHING"
    ).bindparams(sa.bindparam("since", type_=_u.since.type))
)
_ALL: Final = sa.select(_u.agent_id, _u.position).order_by(_u.since, _u.agent_id).limit(MOST_AGENTS)
_OF_ORGANIZATION: Final = _ALL.where(_u.organization_id == sa.bindparam("organization"))
_OF_AGENT: Final = _OF_ORGANIZATION.where(_u.agent_id == sa.bindparam("agent"))
_INCOMPLETE: Final = sa.select(
    sa.or_(
        sa.exists().where(_u.organization_id == sa.bindparam("organization")),
        sa.exists().where(word_rebuilds.c.kind == AGENT),
    )
)
_THIS: Final = _u.agent_id == sa.bindparam("this")
_DELETE: Final = sa.delete(unindexed_agents).where(_THIS)
_ADVANCE: Final = sa.update(unindexed_agents).where(_THIS).values(position=sa.bindparam("indexed"))

_log = structlog.get_logger("mnemesh.recall.words")


def noted(messages: Sequence[SearchableMessage], now: datetime) -> dict[str, Any]:
    """Returns the row of the agent of some new messages, in order of their sequence ids."""
    first = messages[0]
    return {
        "agent_id": first.agent_id,
        "organization_id": first.organization_id,
        "position": first.sequence_id - 1,
        "since": now,
    }


def note(conn: sa.Connection, messages: Sequence[SearchableMessage], now: datetime) -> None:
    """Notes new messages of an agent on SQLite, where one transaction writes at a time."""
    if messages:
        _NOTE.change(conn, noted(messages, now))


def is_complete(conn: sa.Connection, organization_id: str) -> bool:
    """Returns whether all messages of an organization are indexed, and none has the words of an earlier analysis."""
    return not conn.scalar(_INCOMPLETE, {"organization": organization_id})


def forget(conn: sa.Connection, agent_id: str) -> None:
    """Deletes the row of an agent whose messages are deleted."""
    conn.execute(_DELETE, {"this": agent_id})


def forget_all(conn: sa.Connection) -> None:
    """Deletes all rows, because all messages are indexed."""
    conn.execute(sa.delete(unindexed_agents))


class UnindexedMessages:
    """Indexes the messages that wait for it."""

    def __init__(self, database: Database, index: FulltextIndex) -> None:
        self._database = database
        self._index = index

    async def index_some(self, organization_id: str | None = None, agent_id: str | None = None) -> bool:
        """Indexes some messages: of an agent, of an organization, or of those that have waited longest.

        Returns:
            Whether there may be more.
        """
        statement = _OF_AGENT if agent_id is not None else _OF_ORGANIZATION if organization_id is not None else _ALL
        parameters = {"organization": organization_id, "agent": agent_id}

        def index(conn: sa.Connection) -> bool:
            left = MOST_MESSAGES
            rows = conn.execute(statement, parameters).all()
            for row in rows:
                count, indexed = index_page(conn, self._index, row.agent_id, row.position, most=left)
                # The row is written last: commits of steps write it, too, and wait for this transaction from then on.
                if indexed is None:
                    forget(conn, row.agent_id)
                else:
                    conn.execute(_ADVANCE, {"this": row.agent_id, "indexed": indexed})
                left -= count
                if left <= 0:
                    return True
            return len(rows) == MOST_AGENTS

        return await self._database.write(index, name="words.index_some")

    async def finish(self, organization_id: str, agent_id: str | None) -> None:
        """Indexes the messages of an agent, or of an organization, for a limited time."""
        until = time.monotonic() + WAIT_SECONDS
        try:
            while await self.index_some(organization_id, agent_id) and time.monotonic() < until:
                pass
        except DatabaseFull as error:  # What is indexed can still be searched.
            _log.warning("messages_not_indexed", agent_id=agent_id, error=error.message)
