"""The use cases of episodes and facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.indexing.indexer import Indexer

from mnemesh_recall.model.caller_rules import require_lease_holder
from mnemesh_recall.model.episode_operations import (
    EpisodeCommit,
    EpisodeCommitResult,
    EpisodeFilter,
    EpisodeOrder,
    FactFilter,
    FactOrder,
    InvalidateFact,
    MemoryBundle,
    MemoryHits,
    MemorySearch,
    NewFact,
    RestoreFact,
    ScopeErasure,
    ScopeSummary,
    SupersedeFact,
)
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
)
from mnemesh_recall.model.episodes import Episode, Fact, Scope
from mnemesh_recall.model.fact_times import with_times
from mnemesh_recall.model.query_rules import require_page, require_short
from mnemesh_recall.store.base import EpisodeStore
from mnemesh_recall.usecases.episode_search import MemoryFinder


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
        """Returns an episode."""
        require_id(episode_id, "episode", "episode_id")
        return await self._store.get_episode(caller.organization_id, episode_id)

    async def list_episodes(
        self, caller: Principal, filter_: EpisodeFilter, order: EpisodeOrder, page: PageQuery
    ) -> Page[Episode]:
        """Returns a page of episodes."""
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
        """Deletes an episode."""
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
        """Returns a fact."""
        require_id(fact_id, "fact", "fact_id")
        return await self._store.get_fact(caller.organization_id, fact_id)

    async def list_facts(self, caller: Principal, filter_: FactFilter, order: FactOrder, page: PageQuery) -> Page[Fact]:
        """Returns a page of facts."""
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
        """Deletes a fact."""
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
        """Returns a page of scopes."""
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
