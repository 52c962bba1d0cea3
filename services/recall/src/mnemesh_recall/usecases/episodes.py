"""The use cases of episodes and facts, and their search: by full text, by vectors, or by both."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.ranking.scores import DEFAULTS, Candidate, fuse_scores, normalized

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.model.episode_rules import (
    EPISODE_FIELDS,
    FACT_FIELDS,
    require_bundle,
    require_changes,
    require_commit,
    require_episode_filter,
    require_fact_filter,
    require_invalidate,
    require_memory_search,
    require_new_fact,
    require_restore,
    require_scope,
    require_supersede,
    with_times,
)
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
    MemoryHits,
    MemorySearch,
    NewFact,
    RestoreFact,
    Scope,
    ScopeErasure,
    ScopeSummary,
    SupersedeFact,
)
from mnemesh_recall.model.findings import (
    MAX_COMPARED,
    AuditPage,
    Finding,
    FindingKind,
    MemoryAudit,
    comparable,
    orphan_finding,
    pair_findings,
    require_audit,
    secret_finding,
    stale_finding,
    statement_keys,
    statement_of,
)
from mnemesh_recall.model.search import require_page, require_short
from mnemesh_recall.model.writers import require_lease_holder
from mnemesh_recall.store.episodes import EpisodeStore, MemoryAuditStore
from mnemesh_recall.vectors import MemoryVectors

_PAIRS: Final = frozenset({FindingKind.DUPLICATE, FindingKind.NEAR_DUPLICATE, FindingKind.CONTRADICTION})


class MemoryAuditService:
    """Looks for memories that should not stay as they are. Changes nothing."""

    def __init__(self, store: MemoryAuditStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def audit(self, caller: Principal, audit: MemoryAudit) -> AuditPage:
        """Returns a page of findings. Raises InvalidArgument for values that are out of bounds."""
        require_audit(audit)
        organization_id, now = caller.organization_id, self._clock.now()
        memories, position = await self._store.list_stored(
            organization_id, audit.scopes, audit.position, audit.page_size
        )
        existing: frozenset[str] = frozenset()
        if FindingKind.ORPHAN in audit.kinds:
            sources = {id_ for memory in memories if isinstance(memory, Fact) for id_ in memory.source.message_ids}
            existing = await self._store.find_existing_messages(organization_id, sorted(sources))
        scopes: set[Scope] = set()
        if audit.kinds & _PAIRS:
            scopes = {memory.scope for memory in memories if isinstance(memory, Fact) and comparable(memory, now)}
        valid = {scope: await self._store.list_valid(organization_id, scope, MAX_COMPARED) for scope in scopes}
        # Reading the words of 5,000 facts takes a while.
        findings = await asyncio.to_thread(_findings, audit, memories, valid, existing, now)
        return AuditPage(tuple(findings), len(memories), position)


def _findings(
    audit: MemoryAudit,
    memories: Sequence[Episode | Fact],
    valid: Mapping[Scope, Sequence[Fact]],
    existing: frozenset[str],
    now: datetime,
) -> list[Finding]:
    neighbours = {scope: _Neighbours(facts) for scope, facts in valid.items()}
    findings: list[Finding | None] = []
    for memory in memories:
        if FindingKind.SECRET in audit.kinds:
            findings.append(secret_finding(memory))
        if isinstance(memory, Episode):
            continue
        if FindingKind.STALE in audit.kinds:
            findings.append(stale_finding(memory, now, audit.stale_days))
        if FindingKind.ORPHAN in audit.kinds:
            findings.append(orphan_finding(memory, existing))
        if memory.scope in neighbours and comparable(memory, now):
            findings += pair_findings(memory, neighbours[memory.scope].before(memory), audit.kinds)
    return [finding for finding in findings if finding is not None]


class _Neighbours:
    """The valid facts of a scope, found by what related statements have in common."""

    def __init__(self, newest_first: Sequence[Fact]) -> None:
        self._facts = newest_first
        self._places = {fact.id: place for place, fact in enumerate(newest_first)}
        statements = [statement_of(fact.text) for fact in newest_first]
        frequency = Counter(word for statement in statements for word in statement.word_set)
        self._keys = [statement_keys(statement, frequency) for statement in statements]
        self._by_key: dict[Hashable, list[int]] = {}
        for place, keys in enumerate(self._keys):
            for key in keys:
                self._by_key.setdefault(key, []).append(place)

    def before(self, fact: Fact) -> Iterator[Fact]:
        """Yields the facts that were stored before one and may be related to it, newest first."""
        own = self._places.get(fact.id)
        if own is None:
            return
        places = {place for key in self._keys[own] for place in self._by_key[key] if place > own}
        yield from (self._facts[place] for place in sorted(places))


DEPTH: Final = 200
"""The number of hits per index. The vector index has no validity times and tags; the store filters by them later."""
EMBEDDED_CHARACTERS: Final = 2_000

_log = structlog.get_logger("mnemesh.recall.memories")


class MemoryFinder:
    """Searches the terms of memories and the vector index, and fuses the scores of their hits."""

    def __init__(self, store: EpisodeStore, vectors: MemoryVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def search(self, caller: Principal, search: MemorySearch[Any]) -> MemoryHits[Any]:
        """Returns the best hits, best first; for a blank query the newest memories.

        Raises:
            EmbedderUnavailable: the mode is VECTOR, and the embedder cannot be reached. HYBRID uses full text alone.
            VectorIndexUnavailable: the mode is VECTOR, and the vector index cannot be read now.
        """
        organization_id = caller.organization_id
        if not search.query.strip():
            newest = await self._store.list_newest(organization_id, search.filter, search.limit)
            return MemoryHits(tuple((memory, 0.0) for memory in newest))
        by_text: dict[str, float] = {}
        if search.mode is not SearchMode.VECTOR:
            by_text = dict(await self._store.search_fulltext(organization_id, search.filter, search.query, DEPTH))
        by_vector: dict[str, float] = {}
        degraded = search.mode is not SearchMode.VECTOR and not await self._store.has_current_words()
        if search.mode is not SearchMode.TEXT:
            degraded = degraded or not self._vectors.is_complete()
            try:
                by_vector = await self._by_vector(organization_id, search, list(by_text))
            except (EmbedderUnavailable, VectorIndexUnavailable) as error:
                if search.mode is SearchMode.VECTOR:
                    raise
                _log.warning("vector_search_skipped", error=str(error))
                degraded = True
        matching = await self._store.get_matching(organization_id, search.filter, [*by_text, *by_vector])
        return MemoryHits(tuple(self._ranked(search, matching, by_text, by_vector)), degraded=degraded)

    async def _by_vector(
        self, organization_id: str, search: MemorySearch[Any], include: Sequence[str]
    ) -> dict[str, float]:
        query = search.query[:EMBEDDED_CHARACTERS]
        return await self._vectors.search(organization_id, _kind(search), search.filter.scopes, query, DEPTH, include)

    def _ranked(
        self,
        search: MemorySearch[Any],
        matching: Mapping[str, Episode | Fact],
        by_text: Mapping[str, float],
        by_vector: Mapping[str, float],
    ) -> list[tuple[Any, float]]:
        """Returns the best memories that the filter accepts, with their scores."""
        query, embedder = normalized(search.query), self._vectors.embedder
        by_vector_only = search.mode is SearchMode.VECTOR
        candidates = [
            Candidate(
                id_,
                by_text.get(id_, 0.0),
                by_vector.get(id_, 0.0),
                is_exact=normalized(_text(matching[id_])) == query,
            )
            for id_ in dict.fromkeys([*by_text, *by_vector])
            if id_ in matching
        ]
        ranked = fuse_scores(
            candidates,
            1.0 if by_vector_only else embedder.similarity_weight,
            DEFAULTS,
            depth=DEPTH,
            least_similarity=0.0 if by_vector_only else embedder.least_similarity,
        )
        return [(matching[each.id], each.score) for each in ranked[: search.limit]]


def _kind(search: MemorySearch[Any]) -> str:
    return "episode" if isinstance(search.filter, EpisodeFilter) else "fact"


def _text(memory: Episode | Fact) -> str:
    return memory.summary if isinstance(memory, Episode) else memory.text


class EpisodeService:
    """Episodes and facts. Every method refuses invalid arguments with InvalidArgument.

    See EpisodeStore for the semantics and the other errors.
    """

    def __init__(self, store: EpisodeStore, finder: MemoryFinder, indexer: Indexer) -> None:
        self._store = store
        self._finder = finder
        self._indexer = indexer

    async def commit_episode(
        self, caller: Principal, commit: EpisodeCommit, key: RequestKey | None
    ) -> EpisodeCommitResult:
        """Stores an episode and runs operations on facts."""
        require_lease_holder(caller, commit.lease)
        require_commit(commit)
        result = await self._store.commit_episode(caller.organization_id, commit, key)
        self._indexer.notify()
        return result

    async def get_episode(self, caller: Principal, episode_id: str) -> Episode:
        require_id(episode_id, "episode", "episode_id")
        return await self._store.get_episode(caller.organization_id, episode_id)

    async def list_episodes(
        self, caller: Principal, filter_: EpisodeFilter, order: EpisodeOrder, page: PageQuery
    ) -> Page[Episode]:
        require_page(page, "episode")
        require_episode_filter(filter_)
        return await self._store.list_episodes(caller.organization_id, filter_, order, page)

    async def search(self, caller: Principal, search: MemorySearch[Any]) -> MemoryHits[Any]:
        """Returns the best episodes or facts for a query."""
        require_memory_search(search)
        timed, times = with_times(search)
        return replace(await self._finder.search(caller, timed), times=times)

    async def update_episode(
        self, caller: Principal, episode_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Episode:
        """Sets the named fields of an episode."""
        require_id(episode_id, "episode", "episode.id")
        require_changes(changes, EPISODE_FIELDS, "episode")
        episode = await self._store.update_episode(caller.organization_id, episode_id, changes, key)
        self._indexer.notify()
        return episode

    async def delete_episode(self, caller: Principal, episode_id: str, key: RequestKey | None) -> None:
        require_id(episode_id, "episode", "episode_id")
        await self._store.delete_episode(caller.organization_id, episode_id, key)
        self._indexer.notify()

    async def create_fact(self, caller: Principal, new: NewFact, key: RequestKey | None) -> tuple[Fact, bool]:
        """Adds a fact, or confirms the one with the same text. Returns the fact, and whether it existed."""
        require_new_fact(new, "fact")
        if new.scope is None:
            raise InvalidArgument("fact.scope is required.", field="fact.scope")
        created = await self._store.create_fact(caller.organization_id, new.scope, new, key)
        self._indexer.notify()
        return created

    async def get_fact(self, caller: Principal, fact_id: str) -> Fact:
        require_id(fact_id, "fact", "fact_id")
        return await self._store.get_fact(caller.organization_id, fact_id)

    async def list_facts(self, caller: Principal, filter_: FactFilter, order: FactOrder, page: PageQuery) -> Page[Fact]:
        require_page(page, "fact")
        require_fact_filter(filter_)
        return await self._store.list_facts(caller.organization_id, filter_, order, page)

    async def update_fact(
        self, caller: Principal, fact_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Fact:
        """Sets the named fields of a fact. Its text cannot change."""
        require_id(fact_id, "fact", "fact.id")
        require_changes(changes, FACT_FIELDS, "fact")
        return await self._store.update_fact(caller.organization_id, fact_id, changes, key)

    async def supersede_fact(
        self, caller: Principal, operation: SupersedeFact, key: RequestKey | None
    ) -> tuple[Fact, Fact]:
        """Closes a fact in favour of a new one. Returns the new fact and the closed one."""
        require_supersede(operation, "operation")
        facts = await self._store.supersede_fact(caller.organization_id, operation, key)
        self._indexer.notify()
        return facts

    async def restore_fact(
        self, caller: Principal, operation: RestoreFact, key: RequestKey | None
    ) -> tuple[Fact, Fact | None]:
        """States a closed fact again. Returns it, and the fact that it superseded."""
        require_restore(operation)
        facts = await self._store.restore_fact(caller.organization_id, operation, key)
        self._indexer.notify()
        return facts

    async def invalidate_fact(self, caller: Principal, operation: InvalidateFact, key: RequestKey | None) -> Fact:
        """Closes a fact."""
        require_invalidate(operation, "operation")
        return await self._store.invalidate_fact(caller.organization_id, operation, key)

    async def delete_fact(self, caller: Principal, fact_id: str, key: RequestKey | None) -> None:
        require_id(fact_id, "fact", "fact_id")
        await self._store.delete_fact(caller.organization_id, fact_id, key)
        self._indexer.notify()

    async def list_fact_history(self, caller: Principal, fact_id: str, page: PageQuery) -> Page[Fact]:
        """Returns a page of the facts that superseded one another."""
        require_page(page, "fact")
        require_id(fact_id, "fact", "fact_id")
        return await self._store.list_fact_history(caller.organization_id, fact_id, page)

    async def get_bundle(
        self, caller: Principal, filter_: FactFilter, max_episodes: int, max_facts: int
    ) -> MemoryBundle:
        """Returns the memories for the head of a compacted window."""
        require_bundle(filter_, max_episodes, max_facts)
        return await self._store.get_bundle(caller.organization_id, filter_, max_episodes, max_facts)

    async def list_scopes(self, caller: Principal, name_prefix: str | None, page: PageQuery) -> Page[ScopeSummary]:
        require_page(page)
        if name_prefix:
            require_short(name_prefix, "name_prefix")
        return await self._store.list_scopes(caller.organization_id, name_prefix, page)

    async def erase_scope(self, caller: Principal, scope: Scope, key: RequestKey | None) -> ScopeErasure:
        """Deletes all memories of a scope."""
        require_scope(scope, "scope")
        erasure = await self._store.erase_scope(caller.organization_id, scope, key)
        self._indexer.notify()
        return erasure
