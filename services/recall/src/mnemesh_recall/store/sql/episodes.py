"""The store of episodes and facts on SQL. Each method is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate

from mnemesh_recall.model.episode_operations import (
    EpisodeCommit,
    EpisodeCommitResult,
    EpisodeFilter,
    EpisodeOrder,
    FactFilter,
    FactOrder,
    InvalidateFact,
    MemoryBundle,
    MemoryFilter,
    NewFact,
    RestoreFact,
    ScopeErasure,
    ScopeSummary,
    SupersedeFact,
)
from mnemesh_recall.model.episodes import Episode, Fact, Scope
from mnemesh_recall.model.facts import require_open
from mnemesh_recall.store.sql import episode_rows, episode_search, episode_writes, scope_rows
from mnemesh_recall.store.sql.episode_codec import episode_from_row, fact_from_row
from mnemesh_recall.store.sql.episode_filters import episode_conditions, fact_conditions, in_scopes
from mnemesh_recall.store.sql.episode_search import conditions, table_of
from mnemesh_recall.store.sql.episode_tables import episodes, facts
from mnemesh_recall.store.sql.fulltext.engines import fulltext_index
from mnemesh_recall.store.sql.tables import request_ledger
from mnemesh_recall.store.sql.transaction import Transaction
from mnemesh_recall.store.sql.word_rebuilds import WordRebuilds
from mnemesh_recall.store.sql.word_segments.changed import ChangedAgents

T = TypeVar("T")

_e, _f = episodes.c, facts.c
_NONE: Final = ""
"""The ledger's entry for an absent result."""


class SqlEpisodeStore:
    """The episodes and facts on SQLite or PostgreSQL, in the database of the messages."""

    def __init__(self, database: Database, clock: Clock, ids: IdSource, changed: ChangedAgents | None = None) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._ledger = Ledger(request_ledger, clock)
        self._fulltext = fulltext_index(database, changed)
        self._words = WordRebuilds(database, self._fulltext)

    async def commit_episode(
        self, organization_id: str, commit: EpisodeCommit, key: RequestKey | None
    ) -> EpisodeCommitResult:
        """See EpisodeStore."""

        def put(tx: Transaction) -> Sequence[str]:
            episode, stored = episode_writes.commit(tx, commit, self._ids)
            return (_NONE if episode is None else episode.id, *(fact.id for fact in stored))

        def read(conn: sa.Connection, ids: Sequence[str]) -> EpisodeCommitResult:
            episode_id, *fact_ids = ids
            kept = {row.id: fact_from_row(row) for row in conn.execute(sa.select(facts).where(_f.id.in_(fact_ids)))}
            return EpisodeCommitResult(
                episode_rows.read_episode(conn, organization_id, episode_id) if episode_id else None,
                tuple(kept[id_] for id_ in fact_ids if id_ in kept),
            )

        return await self._once(organization_id, key, put, read)

    async def get_episode(self, organization_id: str, episode_id: str) -> Episode:
        """See EpisodeStore."""
        return await self._database.read(lambda conn: episode_rows.read_episode(conn, organization_id, episode_id))

    async def list_episodes(
        self, organization_id: str, filter_: EpisodeFilter, order: EpisodeOrder, page: PageQuery
    ) -> Page[Episode]:
        """See EpisodeStore."""
        statement = sa.select(episodes).where(*episode_conditions(organization_id, filter_))
        owned = _e.organization_id == organization_id
        return await self._database.read(
            lambda conn: paginate(conn, statement, page, key=_e[order.value], id=_e.id, scope=owned).map(
                episode_from_row
            )
        )

    async def update_episode(
        self, organization_id: str, episode_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Episode:
        """See EpisodeStore."""

        def write(tx: Transaction) -> Sequence[str]:
            old = episode_rows.read_episode(tx.conn, organization_id, episode_id)
            episode_rows.owner_of(tx, old.scope)
            episode = replace(old, **changes, updated_at=tx.now)
            episode_rows.update(tx, episode, text_changed=episode.summary != old.summary)
            return (episode.id,)

        return await self._once(
            organization_id, key, write, lambda conn, ids: episode_rows.read_episode(conn, organization_id, ids[0])
        )

    async def delete_episode(self, organization_id: str, episode_id: str, key: RequestKey | None) -> None:
        """See EpisodeStore."""
        await self._delete(organization_id, key, episodes, episode_id)

    async def create_fact(
        self, organization_id: str, scope: Scope, new: NewFact, key: RequestKey | None
    ) -> tuple[Fact, bool]:
        """See EpisodeStore."""

        def put(tx: Transaction) -> Sequence[str]:
            fact, existed = episode_writes.add(tx, new, scope, self._ids)
            return fact.id, "existed" if existed else _NONE

        return await self._once(
            organization_id,
            key,
            put,
            lambda conn, ids: (episode_rows.read_fact(conn, organization_id, ids[0]), bool(ids[1])),
        )

    async def get_fact(self, organization_id: str, fact_id: str) -> Fact:
        """See EpisodeStore."""
        return await self._database.read(lambda conn: episode_rows.read_fact(conn, organization_id, fact_id))

    async def list_facts(
        self, organization_id: str, filter_: FactFilter, order: FactOrder, page: PageQuery
    ) -> Page[Fact]:
        """See EpisodeStore."""
        statement = sa.select(facts).where(*fact_conditions(organization_id, filter_, self._clock.now()))
        owned = _f.organization_id == organization_id
        return await self._database.read(
            lambda conn: paginate(conn, statement, page, key=_f[order.value], id=_f.id, scope=owned).map(fact_from_row)
        )

    async def update_fact(
        self, organization_id: str, fact_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Fact:
        """See EpisodeStore."""

        def write(tx: Transaction) -> Sequence[str]:
            old = episode_rows.read_fact(tx.conn, organization_id, fact_id)
            require_open(old)
            episode_rows.owner_of(tx, old.scope)
            episode_rows.update(tx, replace(old, **changes, updated_at=tx.now))
            return (old.id,)

        return await self._once(
            organization_id, key, write, lambda conn, ids: episode_rows.read_fact(conn, organization_id, ids[0])
        )

    async def supersede_fact(
        self, organization_id: str, operation: SupersedeFact, key: RequestKey | None
    ) -> tuple[Fact, Fact]:
        """See EpisodeStore."""

        def put(tx: Transaction) -> Sequence[str]:
            new, old = episode_writes.supersede(tx, operation, self._ids, "operation")
            return new.id, old.id

        def read(conn: sa.Connection, ids: Sequence[str]) -> tuple[Fact, Fact]:
            return episode_rows.read_fact(conn, organization_id, ids[0]), episode_rows.read_fact(
                conn, organization_id, ids[1]
            )

        return await self._once(organization_id, key, put, read)

    async def restore_fact(
        self, organization_id: str, operation: RestoreFact, key: RequestKey | None
    ) -> tuple[Fact, Fact | None]:
        """See EpisodeStore."""

        def put(tx: Transaction) -> Sequence[str]:
            fact, superseded = episode_writes.restore(tx, operation, self._ids)
            return fact.id, _NONE if superseded is None else superseded.id

        return await self._once(
            organization_id,
            key,
            put,
            lambda conn, ids: (
                episode_rows.read_fact(conn, organization_id, ids[0]),
                episode_rows.read_fact(conn, organization_id, ids[1]) if ids[1] else None,
            ),
        )

    async def invalidate_fact(self, organization_id: str, operation: InvalidateFact, key: RequestKey | None) -> Fact:
        """See EpisodeStore."""
        return await self._once(
            organization_id,
            key,
            lambda tx: (episode_writes.invalidate(tx, operation).id,),
            lambda conn, ids: episode_rows.read_fact(conn, organization_id, ids[0]),
        )

    async def delete_fact(self, organization_id: str, fact_id: str, key: RequestKey | None) -> None:
        """See EpisodeStore."""
        await self._delete(organization_id, key, facts, fact_id)

    async def list_fact_history(self, organization_id: str, fact_id: str, page: PageQuery) -> Page[Fact]:
        """See EpisodeStore."""

        def read(conn: sa.Connection) -> Page[Fact]:
            chain_id = episode_rows.read_fact(conn, organization_id, fact_id).chain_id
            of_chain = sa.and_(_f.chain_id == chain_id, _f.organization_id == organization_id)
            statement = sa.select(facts).where(of_chain)
            return paginate(conn, statement, page, key=_f.row_id, id=_f.id, scope=of_chain).map(fact_from_row)

        return await self._database.read(read)

    async def get_bundle(
        self, organization_id: str, filter_: FactFilter, max_episodes: int, max_facts: int
    ) -> MemoryBundle:
        """See EpisodeStore."""
        now = self._clock.now()
        of_scopes = EpisodeFilter(scopes=filter_.scopes, known_at=filter_.known_at)
        best = (
            sa.select(facts)
            .where(*fact_conditions(organization_id, filter_, now))
            .order_by(sa.func.coalesce(_f.salience, 0.0).desc(), _f.created_at.desc(), _f.row_id.desc())
            .limit(max_facts)
        )

        def read(conn: sa.Connection) -> MemoryBundle:
            newest = episode_search.newest(conn, organization_id, of_scopes, max_episodes, now)
            statement = sorted(conn.execute(best).all(), key=lambda row: (row.created_at, row.row_id))
            return MemoryBundle(tuple(map(episode_from_row, reversed(newest))), tuple(map(fact_from_row, statement)))

        return await self._database.read(read)

    async def list_scopes(self, organization_id: str, name_prefix: str | None, page: PageQuery) -> Page[ScopeSummary]:
        """See EpisodeStore."""
        now = self._clock.now()
        return await self._database.read(
            lambda conn: scope_rows.list_scopes(conn, organization_id, name_prefix, now, page)
        )

    async def erase_scope(self, organization_id: str, scope: Scope, key: RequestKey | None) -> ScopeErasure:
        """See EpisodeStore."""

        def erase(tx: Transaction) -> Sequence[str]:
            return [str(episode_rows.delete(tx, table, in_scopes(table, [scope]))) for table in (episodes, facts)]

        return await self._once(
            organization_id, key, erase, lambda _, counts: ScopeErasure(episodes=int(counts[0]), facts=int(counts[1]))
        )

    async def search_fulltext(
        self, organization_id: str, filter_: MemoryFilter, query: str, limit: int
    ) -> list[tuple[str, float]]:
        """See EpisodeStore."""
        now = self._clock.now()
        return await self._database.read(
            lambda conn: episode_search.search(conn, organization_id, filter_, query, limit, now)
        )

    async def has_current_words(self) -> bool:
        """See EpisodeStore."""
        return await self._words.is_complete_for_memories()

    async def list_newest(self, organization_id: str, filter_: MemoryFilter, limit: int) -> list[Episode | Fact]:
        """See EpisodeStore."""
        now = self._clock.now()
        rows = await self._database.read(lambda conn: episode_search.newest(conn, organization_id, filter_, limit, now))
        return [episode_from_row(row) if isinstance(filter_, EpisodeFilter) else fact_from_row(row) for row in rows]

    async def get_matching(
        self, organization_id: str, filter_: MemoryFilter, ids: Sequence[str]
    ) -> dict[str, Episode | Fact]:
        """See EpisodeStore."""
        if not ids:
            return {}
        table = table_of(filter_)
        matching = conditions(organization_id, filter_, self._clock.now())
        statement = sa.select(table).where(table.c.id.in_(ids), *matching)
        rows = await self._database.read(lambda conn: conn.execute(statement).all())
        return {
            row.id: episode_from_row(row) if isinstance(filter_, EpisodeFilter) else fact_from_row(row) for row in rows
        }

    async def _delete(self, organization_id: str, key: RequestKey | None, table: sa.Table, memory_id: str) -> None:
        def drop(tx: Transaction) -> Sequence[str]:
            episode_rows.delete(tx, table, table.c.id == memory_id)
            if table is facts:
                for link in (_f.superseded_by_id, _f.supersedes_id):
                    tx.conn.execute(sa.update(facts).where(link == memory_id).values({link.name: None}))
            return ()

        await self._once(organization_id, key, drop, lambda _conn, _ids: None)

    async def _once(
        self,
        organization_id: str,
        key: RequestKey | None,
        effect: Callable[[Transaction], Sequence[str]],
        answer: Callable[[sa.Connection, Sequence[str]], T],
    ) -> T:
        """Runs an effect once, and returns the current answer for the ids that it returned."""

        def act(conn: sa.Connection) -> T:
            tx = Transaction(conn, self._fulltext, organization_id, self._clock.now())
            ids, _ = self._ledger.once(conn, key, lambda: effect(tx))
            return answer(conn, ids)

        return await self._database.write(act)
