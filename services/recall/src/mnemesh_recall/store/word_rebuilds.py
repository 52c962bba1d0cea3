"""Indexes words again, in short transactions, after a change of the word analysis."""

import time
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_retrieval.words.analysis import VERSION

from mnemesh_recall.store import episode_rows
from mnemesh_recall.store.fulltext.indexing import index_page
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.tables import AGENT, MEMORIES, agents, word_analysis, word_rebuilds

WAIT_SECONDS: Final = 1.0
"""How long a search indexes the messages of its agent. An agent with some ten thousands takes longer."""

_w = word_rebuilds.c
_COUNT: Final = sa.select(sa.func.count()).select_from(word_rebuilds)
_NEXT: Final = (
    sa.select(_w.kind, _w.subject, _w.position).order_by(_w.kind.desc(), _w.subject).limit(1).with_for_update()
)
_OF_AGENT: Final = _NEXT.where(_w.kind == AGENT, _w.subject == sa.bindparam("agent"))
# Searches ask while anything waits. Building a statement takes several times as long as its answer.
_WAITING: Final = sa.select(sa.func.count(), sa.func.count().filter(_w.kind == MEMORIES)).select_from(word_rebuilds)
_THIS: Final = (_w.kind == sa.bindparam("p_kind"), _w.subject == sa.bindparam("p_subject"))
_DONE: Final = sa.delete(word_rebuilds).where(*_THIS)
_ADVANCE: Final = sa.update(word_rebuilds).where(*_THIS).values(position=sa.bindparam("p_position"))


class WordRebuilds:
    """The messages and memories whose stored words are of another version of the analysis.

    A replica of a database begins with what another one has left. New messages are always of this version.
    """

    def __init__(self, database: Database, index: WordIndex) -> None:
        self._database = database
        self._index = index
        self._may_wait = True
        """False once nothing waits, so that searches need not ask."""

    async def mark(self) -> int:
        """Notes everything as outdated if the stored words are not of this version. Returns what waits."""

        def mark(conn: sa.Connection) -> int:
            if self._is_outdated(conn):
                conn.execute(sa.delete(word_rebuilds))
                every = sa.select(sa.literal(AGENT), agents.c.agent_id, sa.literal(0))
                conn.execute(sa.insert(word_rebuilds).from_select(["kind", "subject", "position"], every))
                rows = [{"kind": MEMORIES, "subject": name, "position": 0} for name in episode_rows.TABLES]
                conn.execute(sa.insert(word_rebuilds), rows)
                self._store_version(conn)
            return int(conn.scalar(_COUNT) or 0)

        waiting = await self._database.write(mark, name="words.mark")
        self._may_wait = waiting > 0
        return waiting

    async def index_page(self, agent_id: str | None = None) -> int | None:
        """Indexes some messages of an agent, or of any agent, or some memories.

        Returns:
            Their number; None if none wait.
        """
        if not self._may_wait:
            return None

        def index_some(conn: sa.Connection) -> int | None:
            row = conn.execute(_NEXT if agent_id is None else _OF_AGENT, {"agent": agent_id}).first()
            if row is None:
                return None
            this = {"p_kind": row.kind, "p_subject": row.subject}
            if row.kind == AGENT:
                count, after = index_page(conn, self._index, row.subject, row.position)
            else:
                count, after = episode_rows.index_memory_page(conn, row.subject, row.position)
            if after is None:
                conn.execute(_DONE, this)
            else:
                conn.execute(_ADVANCE, {**this, "p_position": after})
            return count

        count = await self._database.write(index_some, name="words.next_page")
        if count is None and agent_id is None:
            self._may_wait = False
        return count

    async def finish(self, agent_id: str) -> None:
        """Indexes the messages of an agent before a search of them, for a limited time."""
        until = time.monotonic() + WAIT_SECONDS
        while await self.index_page(agent_id) is not None and time.monotonic() < until:
            pass

    async def is_complete_for_memories(self) -> bool:
        """Returns whether the words of all memories are of this version."""
        if not self._may_wait:
            return True
        every, of_memories = await self._database.read(lambda conn: conn.execute(_WAITING).one(), name="words.waiting")
        self._may_wait = every > 0
        return not of_memories

    def replaced(self, conn: sa.Connection) -> None:
        """Notes that all messages were indexed in this transaction; memories still wait."""
        conn.execute(sa.delete(word_rebuilds).where(_w.kind == AGENT))

    def _is_outdated(self, conn: sa.Connection) -> bool:
        stored = conn.execute(sa.select(word_analysis.c.version)).scalar()
        return stored != VERSION or (self._index.is_empty(conn) and not conn.scalar(_COUNT))

    def _store_version(self, conn: sa.Connection) -> None:
        conn.execute(sa.delete(word_analysis))
        conn.execute(sa.insert(word_analysis).values(version=VERSION))
