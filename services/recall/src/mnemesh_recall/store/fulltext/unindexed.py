"""The messages that are not in the word index yet: the commit of a step notes them, and they are indexed soon after.

A commit is part of every turn, and indexing its words would take as long as the rest of it. Later, the messages of
several commits are indexed together, and each document is written once, with the words of the messages after it.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
import structlog
from mnemesh_kit.sql import Database, DatabaseFull
from mnemesh_kit.sql.prepared import Prepared

from mnemesh_recall.store import tables
from mnemesh_recall.store.fulltext.indexing import index_page
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.tables import unindexed_agents

MOST_MESSAGES: Final = 32
"""The number of messages after which a transaction ends: about 10 ms, so that commits do not wait long. Long messages
end it, too; see `indexing.PAGE_CHARACTERS`."""
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
_organization: Final[sa.BindParameter[Any]] = sa.bindparam("organization", type_=sa.Text)
_before: Final[sa.BindParameter[Any]] = sa.bindparam("before", type_=_u.since.type)
_SOME: Final = {
    dialect: Prepared(
        sa.select(_u.agent_id, _u.position)
        .where(
            sa.or_(_organization.is_(None), _u.organization_id == _organization),
            sa.or_(_before.is_(None), _u.since < _before),
            sa.or_(sa.bindparam("of_all", type_=sa.Boolean), is_one_of),
        )
        .order_by(_u.since, _u.agent_id)
        .limit(MOST_AGENTS)
    )
    for dialect, is_one_of in tables.among(_u.agent_id).items()
}
_THIS: Final = _u.agent_id == sa.bindparam("this")
_DELETE: Final = sa.delete(unindexed_agents).where(_THIS)
_ADVANCE: Final = sa.update(unindexed_agents).where(_THIS).values(position=sa.bindparam("indexed"))

_log = structlog.get_logger("mnemesh.recall.words")


def noted(rows: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, Any]:
    """Returns the row of the agent of some new messages, whose rows are in order of their sequence ids."""
    first = rows[0]
    return {
        "agent_id": first["agent_id"],
        "organization_id": first["organization_id"],
        "position": first["sequence_id"] - 1,
        "since": now,
    }


def note(conn: sa.Connection, rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Notes new messages of an agent on SQLite, where one transaction writes at a time."""
    if rows:
        _NOTE.send(conn, noted(rows, now))


def forget(conn: sa.Connection, agent_id: str) -> None:
    """Deletes the row of an agent whose messages are deleted."""
    conn.execute(_DELETE, {"this": agent_id})


def forget_all(conn: sa.Connection) -> None:
    """Deletes all rows, because all messages are indexed."""
    conn.execute(sa.delete(unindexed_agents))


class UnindexedMessages:
    """Indexes the messages that wait for it."""

    def __init__(self, database: Database, index: WordIndex) -> None:
        self._database = database
        self._index = index

    async def index_some(
        self,
        agent_ids: Sequence[str] | None = None,
        *,
        organization_id: str | None = None,
        before: datetime | None = None,
    ) -> bool:
        """Indexes some messages that wait, first those that have waited longest.

        Args:
            agent_ids: only of these agents.
            organization_id: only of this organization.
            before: only of agents with messages that were committed earlier.

        Returns:
            Whether there may be more.
        """
        conditions = {"organization": organization_id, "before": before, "of_all": agent_ids is None}

        def index(conn: sa.Connection) -> bool:
            left = MOST_MESSAGES
            parameters = {**conditions, **tables.listed(conn, agent_ids or ())}
            rows = _SOME[conn.dialect.name].all(conn, parameters)
            for row in rows:
                count, indexed = index_page(conn, self._index, row.agent_id, row.position, most=left)
                # The row is written last: commits of steps write it, too, and wait for this transaction from then on.
                if indexed is None:
                    forget(conn, row.agent_id)
                else:
                    conn.execute(_ADVANCE, {"this": row.agent_id, "indexed": indexed})
                left -= count
                if left <= 0 or indexed is not None:
                    return True
            return len(rows) == MOST_AGENTS

        return await self._database.write(index, name="words.index_some")

    async def finish(self, organization_id: str, agent_id: str | None) -> None:
        """Indexes the messages of an agent, or of an organization, for a limited time."""
        until = time.monotonic() + WAIT_SECONDS
        agent_ids = None if agent_id is None else (agent_id,)
        try:
            while await self.index_some(agent_ids, organization_id=organization_id) and time.monotonic() < until:
                pass
        except DatabaseFull as error:  # What is indexed can still be searched.
            _log.warning("messages_not_indexed", agent_id=agent_id, error=error.message)
