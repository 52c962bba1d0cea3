"""The stores of episodes and facts on SQL: lists, searches, scopes, and the reads of audits.

Each method is one transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock
from mnemesh_retrieval.ranking.scores import DEFAULTS, rarity
from mnemesh_retrieval.words.analysis import indexed, terms

from mnemesh_recall.model.episode_rules import require_open
from mnemesh_recall.model.episodes import (
    Episode,
    EpisodeCommit,
    EpisodeCommitResult,
    EpisodeFilter,
    EpisodeOrder,
    Fact,
    FactFilter,
    FactOrder,
    InvalidateFact,
    MemoryBundle,
    MemoryFilter,
    NewFact,
    RestoreFact,
    Scope,
    ScopeErasure,
    ScopeKind,
    ScopeSummary,
    SupersedeFact,
)
from mnemesh_recall.model.ranking import Candidate, Candidates, word_scores
from mnemesh_recall.store import episode_rows
from mnemesh_recall.store.episode_rows import (
    AnyRow,
    Condition,
    episode_conditions,
    episode_from_row,
    fact_conditions,
    fact_from_row,
    in_scopes,
    valid,
)
from mnemesh_recall.store.fulltext.indexing import stored_languages
from mnemesh_recall.store.fulltext.selection import holders_of_words, selective_terms
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.tables import episodes, facts, memory_terms, messages, request_ledger
from mnemesh_recall.store.transaction import Transaction
from mnemesh_recall.store.word_rebuilds import WordRebuilds


def list_scopes(
    conn: sa.Connection, organization_id: str, name_prefix: str | None, now: datetime, page: PageQuery
) -> Page[ScopeSummary]:
    """See EpisodeStore.list_scopes."""
    memories = sa.union_all(
        _counts(episodes, organization_id, sa.literal(1), sa.literal(0)),
        _counts(facts, organization_id, sa.literal(0), sa.case((sa.and_(*valid(now, now)), 1), else_=0)),
    ).subquery("memories")
    m = memories.c
    scopes = (
        sa.select(
            m.scope_kind,
            m.scope_id,
            sa.func.sum(m.episode_count).label("episode_count"),
            sa.func.sum(m.fact_count).label("fact_count"),
            sa.func.max(m.updated_at).label("updated_at"),
        )
        .group_by(m.scope_kind, m.scope_id)
        .subquery("scopes")
    )
    statement = sa.select(scopes)
    if name_prefix is not None:
        named = scopes.c.scope_kind == ScopeKind.NAME.value
        statement = statement.where(named, scopes.c.scope_id.startswith(name_prefix, autoescape=True))
    visible = scopes.c.scope_id.is_not(None)
    return paginate(conn, statement, page, key=scopes.c.scope_kind, id=scopes.c.scope_id, scope=visible).map(
        _summary_from_row
    )


def _counts(table: sa.Table, organization_id: str, episode_count: Any, fact_count: Any) -> sa.Select[Any]:
    column = table.c
    return sa.select(
        column.scope_kind,
        column.scope_id,
        episode_count.label("episode_count"),
        fact_count.label("fact_count"),
        column.updated_at,
    ).where(column.organization_id == organization_id)


def _summary_from_row(row: sa.Row[Any]) -> ScopeSummary:
    scope = Scope(ScopeKind(row.scope_kind), row.scope_id)
    return ScopeSummary(scope, int(row.episode_count), int(row.fact_count), row.updated_at)


_t = memory_terms.c


def table_of(filter_: MemoryFilter) -> sa.Table:
    """Returns the table that a filter applies to."""
    return episodes if isinstance(filter_, EpisodeFilter) else facts


def conditions(organization_id: str, filter_: MemoryFilter, now: datetime) -> list[Condition]:
    """Returns the conditions of a filter on its table."""
    if isinstance(filter_, EpisodeFilter):
        return list(episode_conditions(organization_id, filter_))
    return list(fact_conditions(organization_id, filter_, now))


def search_memories(
    conn: sa.Connection, organization_id: str, filter_: MemoryFilter, query: str, limit: int, now: datetime
) -> list[tuple[str, float]]:
    """See EpisodeStore.search_fulltext."""
    term_conditions = _term_conditions(organization_id, filter_)
    own = terms(query, stored_languages(conn, organization_id))
    if not own:
        return []
    counts = holders_of_words(_message_counts(conn, term_conditions, tuple(own)), own)
    if not counts:
        return []
    size = _size(conn, organization_id, filter_)
    weights = {term: rarity(count, size) for term, count in counts.items()}
    selected = selective_terms(counts, weights, size)
    candidates = max(DEFAULTS.word_candidates, 2 * limit)
    words = {word: weight for term, weight in selected.items() for word in term.split()}
    score: sa.ColumnElement[Any] = sa.func.sum(sa.case(words, value=_t.term, else_=0.0))
    found = (
        sa.select(_t.memory_id, score.label("score"))
        .where(*term_conditions, _t.term.in_(words))
        .group_by(_t.memory_id)
        .subquery("found")
    )
    table = table_of(filter_)
    text = table.c.summary if table is episodes else table.c.text
    rows = conn.execute(
        sa.select(table.c.id, text)
        .join_from(found, table, table.c.id == found.c.memory_id)
        .where(*conditions(organization_id, filter_, now))
        .order_by(found.c.score.desc(), table.c.row_id.desc())
        .limit(candidates)
    )
    texts = [_candidate(*row) for row in rows]
    scores = word_scores(Candidates.of(texts, tuple(weights)), weights, DEFAULTS).tolist()
    scored = [(text.id, score) for text, score in zip(texts, scores, strict=True)]
    return sorted((item for item in scored if item[1] > 0), key=lambda item: -item[1])[:limit]


def newest_episodes(
    conn: sa.Connection, organization_id: str, filter_: MemoryFilter, limit: int, now: datetime
) -> list[AnyRow]:
    """Returns the rows that were stored last, newest first."""
    table = table_of(filter_)
    order = (table.c.created_at.desc(), table.c.row_id.desc())
    statement = sa.select(table).where(*conditions(organization_id, filter_, now)).order_by(*order).limit(limit)
    return list(conn.execute(statement).all())


def _term_conditions(organization_id: str, filter_: MemoryFilter) -> list[Condition]:
    kind = "episode" if isinstance(filter_, EpisodeFilter) else "fact"
    conditions_: list[Condition] = [_t.organization_id == organization_id, _t.kind == kind]
    if filter_.scopes:
        conditions_.append(_t.scope_key.in_([scope.key for scope in filter_.scopes]))
    return conditions_


def _message_counts(conn: sa.Connection, term_conditions: Sequence[Condition], terms: Sequence[str]) -> dict[str, int]:
    """Returns the number of memories with each term. For a phrase it is the upper bound by its words."""
    words = {word for term in terms for word in term.split()}
    counted = sa.select(_t.term, sa.func.count()).where(*term_conditions, _t.term.in_(words)).group_by(_t.term)
    counts: dict[str, int] = {row[0]: row[1] for row in conn.execute(counted)}
    bounds = {term: min(counts.get(word, 0) for word in term.split()) for term in terms if term.split()}
    return {term: count for term, count in bounds.items() if count}


def _size(conn: sa.Connection, organization_id: str, filter_: MemoryFilter) -> int:
    table, scopes = table_of(filter_), tuple[Scope, ...](filter_.scopes)
    counted = sa.select(sa.func.count()).select_from(table).where(table.c.organization_id == organization_id)
    return int(conn.scalar(counted.where(in_scopes(table, scopes)) if scopes else counted) or 0)


READ_CHARACTERS: Final = 8_000
"""The length of the part of a text that is read for the ranking."""


def _candidate(id_: str, text: str) -> Candidate:
    body = indexed(text, READ_CHARACTERS)
    return Candidate(id_, body, max(len(body), len(text) if len(text) > READ_CHARACTERS else 0))


T = TypeVar("T")

_e, _f = episodes.c, facts.c
_NONE: Final = ""
"""The ledger's entry for an absent result."""


class EpisodeStore:
    """The episodes and facts of all organizations.

    Every method is one transaction. A resource of another organization is NotFound. A write in the scope of an erased
    agent, or of one of its conversations, raises Erased; such a scope is erased with the agent.

    A repeated `key` returns the first result again, or raises RequestIdReused if the content differs, or NotFound if
    the result was erased meanwhile. A change of a closed fact raises FactClosed.

    Example:
        result = await store.commit_episode(organization_id, EpisodeCommit(scope=scope, episode=new), key)
        page = await store.list_facts(organization_id, FactFilter(scopes=(scope,)), FactOrder.CREATED, page_query)
    """

    def __init__(self, database: Database, clock: Clock, ids: IdSource) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._ledger = Ledger(database, request_ledger, clock)
        self._index = WordIndex(database)
        self._words = WordRebuilds(database, self._index)

    async def commit_episode(
        self, organization_id: str, commit: EpisodeCommit, key: RequestKey | None
    ) -> EpisodeCommitResult:
        """Stores an episode and runs operations on facts, in order. All of it is stored, or nothing.

        With `requires_sources`, a message that it names as a source must exist. A higher epoch of the lease than the
        stored one is kept. A fact that is added without a source episode gets
        this episode as its source.

        Raises:
            NotFound: the conversation, a fact, or a required message does not exist.
            LeaseLost: the conversation has a higher epoch.
            InvalidArgument: neither a memory nor the commit names the scope.
        """

        def put(tx: Transaction) -> Sequence[str]:
            episode, stored = episode_rows.commit(tx, commit, self._ids)
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
        """Returns an episode. Raises NotFound."""
        return await self._database.read(lambda conn: episode_rows.read_episode(conn, organization_id, episode_id))

    async def list_episodes(
        self, organization_id: str, filter_: EpisodeFilter, order: EpisodeOrder, page: PageQuery
    ) -> Page[Episode]:
        """Returns a page. Episodes without a value to order by come last."""
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
        """Sets the named fields of an episode."""

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
        """Deletes an episode. One that does not exist is not an error. The facts that name it as a source remain."""
        await self._delete(organization_id, key, episodes, episode_id)

    async def create_fact(
        self, organization_id: str, scope: Scope, new: NewFact, key: RequestKey | None
    ) -> tuple[Fact, bool]:
        """Adds a fact, or confirms the valid fact of the scope with the same text.

        Returns:
            The fact, and whether it existed.
        """

        def put(tx: Transaction) -> Sequence[str]:
            fact, existed = episode_rows.add(tx, new, scope, self._ids)
            return fact.id, "existed" if existed else _NONE

        return await self._once(
            organization_id,
            key,
            put,
            lambda conn, ids: (episode_rows.read_fact(conn, organization_id, ids[0]), bool(ids[1])),
        )

    async def get_fact(self, organization_id: str, fact_id: str) -> Fact:
        """Returns a fact, closed or not. Raises NotFound."""
        return await self._database.read(lambda conn: episode_rows.read_fact(conn, organization_id, fact_id))

    async def list_facts(
        self, organization_id: str, filter_: FactFilter, order: FactOrder, page: PageQuery
    ) -> Page[Fact]:
        """Returns a page. Facts without a value to order by come last."""
        statement = sa.select(facts).where(*fact_conditions(organization_id, filter_, self._clock.now()))
        owned = _f.organization_id == organization_id
        return await self._database.read(
            lambda conn: paginate(conn, statement, page, key=_f[order.value], id=_f.id, scope=owned).map(fact_from_row)
        )

    async def update_fact(
        self, organization_id: str, fact_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Fact:
        """Sets the named fields of a fact."""

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
        """Closes a fact and adds another one of the same scope. Returns the new fact and the closed one.

        If two requests supersede the same fact at once, one of them raises FactClosed.
        """

        def put(tx: Transaction) -> Sequence[str]:
            new, old = episode_rows.supersede(tx, operation, self._ids, "operation")
            return new.id, old.id

        def read(conn: sa.Connection, ids: Sequence[str]) -> tuple[Fact, Fact]:
            return episode_rows.read_fact(conn, organization_id, ids[0]), episode_rows.read_fact(
                conn, organization_id, ids[1]
            )

        return await self._once(organization_id, key, put, read)

    async def restore_fact(
        self, organization_id: str, operation: RestoreFact, key: RequestKey | None
    ) -> tuple[Fact, Fact | None]:
        """States a closed fact again, as the newest of its chain. Returns it, and the fact that it superseded."""

        def put(tx: Transaction) -> Sequence[str]:
            fact, superseded = episode_rows.restore(tx, operation, self._ids)
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
        """Closes a fact. A fact that is closed for the same time is unchanged."""
        return await self._once(
            organization_id,
            key,
            lambda tx: (episode_rows.invalidate(tx, operation).id,),
            lambda conn, ids: episode_rows.read_fact(conn, organization_id, ids[0]),
        )

    async def delete_fact(self, organization_id: str, fact_id: str, key: RequestKey | None) -> None:
        """Deletes a fact. One that does not exist is not an error. The others of its chain remain as they are."""
        await self._delete(organization_id, key, facts, fact_id)

    async def list_fact_history(self, organization_id: str, fact_id: str, page: PageQuery) -> Page[Fact]:
        """Returns a page of the facts that superseded one another, in the order of their storage."""

        def read(conn: sa.Connection) -> Page[Fact]:
            chain_id = episode_rows.read_fact(conn, organization_id, fact_id).chain_id
            of_chain = sa.and_(_f.chain_id == chain_id, _f.organization_id == organization_id)
            statement = sa.select(facts).where(of_chain)
            return paginate(conn, statement, page, key=_f.row_id, id=_f.id, scope=of_chain).map(fact_from_row)

        return await self._database.read(read)

    async def get_bundle(
        self, organization_id: str, filter_: FactFilter, max_episodes: int, max_facts: int
    ) -> MemoryBundle:
        """Returns the newest episodes and the most salient valid facts, in one consistent read."""
        now = self._clock.now()
        of_scopes = EpisodeFilter(scopes=filter_.scopes, known_at=filter_.known_at)
        best = (
            sa.select(facts)
            .where(*fact_conditions(organization_id, filter_, now))
            .order_by(sa.func.coalesce(_f.salience, 0.0).desc(), _f.created_at.desc(), _f.row_id.desc())
            .limit(max_facts)
        )

        def read(conn: sa.Connection) -> MemoryBundle:
            newest = newest_episodes(conn, organization_id, of_scopes, max_episodes, now)
            statement = sorted(conn.execute(best).all(), key=lambda row: (row.created_at, row.row_id))
            return MemoryBundle(tuple(map(episode_from_row, reversed(newest))), tuple(map(fact_from_row, statement)))

        return await self._database.read(read)

    async def list_scopes(self, organization_id: str, name_prefix: str | None, page: PageQuery) -> Page[ScopeSummary]:
        """Returns the scopes that contain a memory, ordered by kind and id.

        With a `name_prefix`, only scopes of the kind NAME whose name starts with it.
        """
        now = self._clock.now()
        return await self._database.read(lambda conn: list_scopes(conn, organization_id, name_prefix, now, page))

    async def erase_scope(self, organization_id: str, scope: Scope, key: RequestKey | None) -> ScopeErasure:
        """Deletes all memories of a scope. Later writes to it are accepted."""

        def erase(tx: Transaction) -> Sequence[str]:
            return [str(episode_rows.delete(tx, table, in_scopes(table, [scope]))) for table in (episodes, facts)]

        return await self._once(
            organization_id, key, erase, lambda _, counts: ScopeErasure(episodes=int(counts[0]), facts=int(counts[1]))
        )

    async def search_fulltext(
        self, organization_id: str, filter_: MemoryFilter, query: str, limit: int
    ) -> list[tuple[str, float]]:
        """Returns the ids and scores of the memories that contain at least one word of the query, best first."""
        now = self._clock.now()
        return await self._database.read(
            lambda conn: search_memories(conn, organization_id, filter_, query, limit, now)
        )

    async def has_current_words(self) -> bool:
        """Returns false after a change of the word analysis, until the words of all memories are indexed again."""
        return await self._words.is_complete_for_memories()

    async def list_newest(self, organization_id: str, filter_: MemoryFilter, limit: int) -> list[Episode | Fact]:
        """Returns the memories that were stored last, newest first."""
        now = self._clock.now()
        rows = await self._database.read(lambda conn: newest_episodes(conn, organization_id, filter_, limit, now))
        return [episode_from_row(row) if isinstance(filter_, EpisodeFilter) else fact_from_row(row) for row in rows]

    async def get_matching(
        self, organization_id: str, filter_: MemoryFilter, ids: Sequence[str]
    ) -> dict[str, Episode | Fact]:
        """Returns those of `ids` that the filter accepts, by id."""
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
            tx = Transaction(conn, self._index, organization_id, self._clock.now())
            ids, _ = self._ledger.once(conn, key, lambda: effect(tx))
            return answer(conn, ids)

        return await self._database.write(act)


_m = messages.c
_BATCH: Final = 500


class MemoryAuditStore:
    """The memories of an organization, as an audit reads them. Every method is one transaction."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_stored(
        self, organization_id: str, scopes: Sequence[Scope], position: int, limit: int
    ) -> tuple[list[Episode | Fact], int | None]:
        """Returns memories in the order of their storage, the facts first, and the position after them.

        `position` is 0 at the start: twice the number of a row, and odd among the episodes. The position after the last
        memory is None.
        """
        after, is_episode = divmod(position, 2)
        table = episodes if is_episode else facts
        column = table.c
        conditions = [column.organization_id == organization_id, column.row_id > after]
        if scopes:
            conditions.append(in_scopes(table, scopes))
        query = sa.select(table).where(*conditions).order_by(column.row_id).limit(limit)
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        memories: list[Episode | Fact] = [episode_from_row(row) if is_episode else fact_from_row(row) for row in rows]
        if len(rows) == limit:
            return memories, 2 * rows[-1].row_id + is_episode
        return memories, None if is_episode else 1

    async def list_valid(self, organization_id: str, scope: Scope, limit: int) -> list[Fact]:
        """Returns the open facts of a scope that are valid now, those that were stored last first."""
        now = self._clock.now()
        query = (
            sa.select(facts)
            .where(
                _f.organization_id == organization_id,
                in_scopes(facts, [scope]),
                _f.closed_at.is_(None),
                *valid(now, now),
            )
            .order_by(_f.row_id.desc())
            .limit(limit)
        )
        return [fact_from_row(row) for row in await self._database.read(lambda conn: conn.execute(query).all())]

    async def find_existing_messages(self, organization_id: str, message_ids: Sequence[str]) -> frozenset[str]:
        """Returns those of the messages that exist."""

        def read(conn: sa.Connection) -> frozenset[str]:
            found: set[str] = set()
            for start in range(0, len(message_ids), _BATCH):
                owned = (_m.organization_id == organization_id, _m.id.in_(message_ids[start : start + _BATCH]))
                found.update(conn.execute(sa.select(_m.id).where(*owned)).scalars())
            return frozenset(found)

        return await self._database.read(read)
