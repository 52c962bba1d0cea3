"""The Protocol of the store of episodes and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

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
    ScopeSummary,
    SupersedeFact,
)


class EpisodeStore(Protocol):
    """The episodes and facts of all organizations.

    Every method is one transaction. A resource of another organization is NotFound. A write in the scope of an erased
    agent, or of one of its conversations, raises Erased; such a scope is erased with the agent.

    A repeated `key` returns the first result again, or raises RequestIdReused if the content differs, or NotFound if
    the result was erased meanwhile. A change of a closed fact raises FactClosed.

    Example:
        result = await store.commit_episode(organization_id, EpisodeCommit(scope=scope, episode=new), key)
        page = await store.list_facts(organization_id, FactFilter(scopes=(scope,)), FactOrder.CREATED, page_query)
    """

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
        ...

    async def get_episode(self, organization_id: str, episode_id: str) -> Episode:
        """Returns an episode. Raises NotFound."""
        ...

    async def list_episodes(
        self, organization_id: str, filter_: EpisodeFilter, order: EpisodeOrder, page: PageQuery
    ) -> Page[Episode]:
        """Returns a page. Episodes without a value to order by come last."""
        ...

    async def update_episode(
        self, organization_id: str, episode_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Episode:
        """Sets the named fields of an episode."""
        ...

    async def delete_episode(self, organization_id: str, episode_id: str, key: RequestKey | None) -> None:
        """Deletes an episode. One that does not exist is no error. The facts that name it as a source remain."""
        ...

    async def create_fact(
        self, organization_id: str, scope: Scope, new: NewFact, key: RequestKey | None
    ) -> tuple[Fact, bool]:
        """Adds a fact, or confirms the valid fact of the scope with the same text.

        Returns:
            The fact, and whether it existed.
        """
        ...

    async def get_fact(self, organization_id: str, fact_id: str) -> Fact:
        """Returns a fact, closed or not. Raises NotFound."""
        ...

    async def list_facts(
        self, organization_id: str, filter_: FactFilter, order: FactOrder, page: PageQuery
    ) -> Page[Fact]:
        """Returns a page. Facts without a value to order by come last."""
        ...

    async def update_fact(
        self, organization_id: str, fact_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Fact:
        """Sets the named fields of a fact."""
        ...

    async def supersede_fact(
        self, organization_id: str, operation: SupersedeFact, key: RequestKey | None
    ) -> tuple[Fact, Fact]:
        """Closes a fact and adds another one of the same scope. Returns the new fact and the closed one.

        If two requests supersede the same fact at once, one of them raises FactClosed.
        """
        ...

    async def invalidate_fact(self, organization_id: str, operation: InvalidateFact, key: RequestKey | None) -> Fact:
        """Closes a fact. A fact that is closed for the same time is unchanged."""
        ...

    async def delete_fact(self, organization_id: str, fact_id: str, key: RequestKey | None) -> None:
        """Deletes a fact. One that does not exist is no error. The others of its chain remain as they are."""
        ...

    async def list_fact_history(self, organization_id: str, fact_id: str, page: PageQuery) -> Page[Fact]:
        """Returns a page of the facts that superseded one another, in the order of their storage."""
        ...

    async def get_bundle(
        self, organization_id: str, filter_: FactFilter, max_episodes: int, max_facts: int
    ) -> MemoryBundle:
        """Returns the newest episodes and the most salient valid facts, in one consistent read."""
        ...

    async def list_scopes(self, organization_id: str, name_prefix: str | None, page: PageQuery) -> Page[ScopeSummary]:
        """Returns the scopes that contain a memory, ordered by kind and id.

        With a `name_prefix`, only scopes of the kind NAME whose name starts with it.
        """
        ...

    async def erase_scope(self, organization_id: str, scope: Scope, key: RequestKey | None) -> ScopeErasure:
        """Deletes all memories of a scope. Later writes to it are accepted."""
        ...

    async def restore_fact(
        self, organization_id: str, operation: RestoreFact, key: RequestKey | None
    ) -> tuple[Fact, Fact | None]:
        """States a closed fact again, as the newest of its chain. Returns it, and the fact that it superseded."""
        ...

    async def search_fulltext(
        self, organization_id: str, filter_: MemoryFilter, query: str, limit: int
    ) -> list[tuple[str, float]]:
        """Returns the ids and scores of the memories that contain at least one word of the query, best first."""
        ...

    async def has_current_words(self) -> bool:
        """Returns false after a change of the word analysis, until the words of all memories are indexed again."""
        ...

    async def list_newest(self, organization_id: str, filter_: MemoryFilter, limit: int) -> list[Episode | Fact]:
        """Returns the memories that were stored last, newest first."""
        ...

    async def get_matching(
        self, organization_id: str, filter_: MemoryFilter, ids: Sequence[str]
    ) -> dict[str, Episode | Fact]:
        """Returns those of `ids` that the filter accepts, by id."""
        ...
