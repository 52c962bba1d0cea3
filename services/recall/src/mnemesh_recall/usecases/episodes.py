"""The use cases of episodes and facts: rules that need no database, then the store, then the news for the index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_recall.model.episode_operations import (
    Committed,
    EpisodeCommit,
    EpisodeFilter,
    EpisodeOrder,
    FactFilter,
    FactOrder,
    Invalidate,
    MemoryBundle,
    MemoryHits,
    MemorySearch,
    NewFact,
    ScopeErasure,
    ScopeSummary,
    Supersede,
)
from mnemesh_recall.model.episodes import Episode, Fact, Scope
from mnemesh_recall.store.base import EpisodeStore
from mnemesh_recall.usecases.episode_search import MemoryFinder
from mnemesh_recall.vectors.indexer import Indexer


class EpisodeService:
    """Episodes and facts of one organization after another; see EpisodeStore for what each of these does."""

    def __init__(self, store: EpisodeStore, finder: MemoryFinder, indexer: Indexer) -> None:
        self._store = store
        self._finder = finder
        self._indexer = indexer

    async def commit_episode(self, organization_id: str, wanted: EpisodeCommit, key: RequestKey | None) -> Committed:
        """Takes in what a look back brought to light."""
        if wanted.episode is None and not wanted.operations:
            raise InvalidArgument("An episode or operations must be given.", field="episode")
        if wanted.epoch is not None and wanted.conversation_id is None:
            raise InvalidArgument("A lease is on a conversation, which must be named.", field="conversation_id")
        done = await self._store.commit_episode(organization_id, wanted, key)
        self._indexer.wake()
        return done

    async def get_episode(self, organization_id: str, episode_id: str) -> Episode:
        """One episode."""
        return await self._store.get_episode(organization_id, episode_id)

    async def list_episodes(
        self, organization_id: str, wanted: EpisodeFilter, order: EpisodeOrder, page: PageQuery
    ) -> Page[Episode]:
        """A page of episodes."""
        return await self._store.list_episodes(organization_id, wanted, order, page)

    async def search(self, organization_id: str, wanted: MemorySearch[Any]) -> MemoryHits[Any]:
        """Searches episodes or facts."""
        return await self._finder.search(organization_id, wanted)

    async def update_episode(
        self, organization_id: str, episode_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Episode:
        """Changes an episode."""
        episode = await self._store.update_episode(organization_id, episode_id, changes, key)
        self._indexer.wake()
        return episode

    async def delete_episode(self, organization_id: str, episode_id: str, key: RequestKey | None) -> None:
        """Erases an episode."""
        await self._store.delete_episode(organization_id, episode_id, key)
        self._indexer.wake()

    async def create_fact(self, organization_id: str, new: NewFact, key: RequestKey | None) -> tuple[Fact, bool]:
        """Adds a fact, or confirms the one that says the same."""
        if new.scope is None:
            raise InvalidArgument("fact.scope is required.", field="fact.scope")
        made = await self._store.create_fact(organization_id, new.scope, new, key)
        self._indexer.wake()
        return made

    async def get_fact(self, organization_id: str, fact_id: str) -> Fact:
        """One fact."""
        return await self._store.get_fact(organization_id, fact_id)

    async def list_facts(
        self, organization_id: str, wanted: FactFilter, order: FactOrder, page: PageQuery
    ) -> Page[Fact]:
        """A page of facts."""
        return await self._store.list_facts(organization_id, wanted, order, page)

    async def update_fact(
        self, organization_id: str, fact_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Fact:
        """Changes what stands beside a fact's text."""
        return await self._store.update_fact(organization_id, fact_id, changes, key)

    async def supersede_fact(
        self, organization_id: str, wanted: Supersede, key: RequestKey | None
    ) -> tuple[Fact, Fact]:
        """Closes a fact in favour of a new one."""
        made = await self._store.supersede_fact(organization_id, wanted, key)
        self._indexer.wake()
        return made

    async def invalidate_fact(self, organization_id: str, wanted: Invalidate, key: RequestKey | None) -> Fact:
        """Closes a fact."""
        return await self._store.invalidate_fact(organization_id, wanted, key)

    async def delete_fact(self, organization_id: str, fact_id: str, key: RequestKey | None) -> None:
        """Erases a fact."""
        await self._store.delete_fact(organization_id, fact_id, key)
        self._indexer.wake()

    async def list_fact_history(self, organization_id: str, fact_id: str, page: PageQuery) -> Page[Fact]:
        """A page of a chain of facts."""
        return await self._store.list_fact_history(organization_id, fact_id, page)

    async def get_bundle(
        self, organization_id: str, where: FactFilter, max_episodes: int, max_facts: int
    ) -> MemoryBundle:
        """The head of a compacted window."""
        if not where.scopes:
            raise InvalidArgument("scopes must name one at least.", field="scopes")
        return await self._store.get_bundle(organization_id, where, max_episodes, max_facts)

    async def list_scopes(self, organization_id: str, name_prefix: str | None, page: PageQuery) -> Page[ScopeSummary]:
        """A page of scopes."""
        return await self._store.list_scopes(organization_id, name_prefix, page)

    async def erase_scope(self, organization_id: str, scope: Scope, key: RequestKey | None) -> ScopeErasure:
        """Erases a scope."""
        gone = await self._store.erase_scope(organization_id, scope, key)
        self._indexer.wake()
        return gone
