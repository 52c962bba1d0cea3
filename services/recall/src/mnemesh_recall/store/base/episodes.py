"""The port of the store of episodes and facts; the docstrings are its contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
    MemoryText,
    NewFact,
    ScopeErasure,
    ScopeSummary,
    Supersede,
)
from mnemesh_recall.model.episodes import Episode, Fact, Scope


class EpisodeStore(Protocol):
    """Episodes and facts of all organizations.

    Every method is one transaction. What belongs to another organization is NotFound, as if it were not there. Writes
    under the scope of an erased agent, or of a conversation of its, raise Erased; such a scope goes with the agent.
    A `key` that was used before gives the first result again, or RequestIdReused where the content differs; where
    that result was erased meanwhile it is NotFound. What is changed in a closed fact raises FactClosed.
    """

    async def commit_episode(self, organization_id: str, wanted: EpisodeCommit, key: RequestKey | None) -> Committed:
        """Stores an episode and does operations on facts, in order, all or none.

        Checked first: the conversation (NotFound), then its lease (a lower epoch than the highest seen: LeaseLost; a
        higher one is kept). Facts that are added without a source episode are drawn from this one. InvalidArgument
        where neither a memory nor the commit names its scope.
        """
        ...

    async def get_episode(self, organization_id: str, episode_id: str) -> Episode:
        """One episode."""
        ...

    async def list_episodes(
        self, organization_id: str, wanted: EpisodeFilter, order: EpisodeOrder, page: PageQuery
    ) -> Page[Episode]:
        """A page; those without a value to order by come last."""
        ...

    async def update_episode(
        self, organization_id: str, episode_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Episode:
        """Gives an episode new values of the named fields."""
        ...

    async def delete_episode(self, organization_id: str, episode_id: str, key: RequestKey | None) -> None:
        """Erases an episode; one that is not there is no error. The facts drawn from it stay."""
        ...

    async def create_fact(
        self, organization_id: str, scope: Scope, new: NewFact, key: RequestKey | None
    ) -> tuple[Fact, bool]:
        """Adds a fact, or confirms the one of its scope that holds and says the same; whether that was so."""
        ...

    async def get_fact(self, organization_id: str, fact_id: str) -> Fact:
        """One fact, closed or not."""
        ...

    async def list_facts(
        self, organization_id: str, wanted: FactFilter, order: FactOrder, page: PageQuery
    ) -> Page[Fact]:
        """A page; those without a value to order by come last."""
        ...

    async def update_fact(
        self, organization_id: str, fact_id: str, changes: Mapping[str, Any], key: RequestKey | None
    ) -> Fact:
        """Gives a fact new values of the named fields."""
        ...

    async def supersede_fact(
        self, organization_id: str, wanted: Supersede, key: RequestKey | None
    ) -> tuple[Fact, Fact]:
        """Closes a fact in favour of a new one of the same scope: the new one, and the closed one.

        Of two that supersede the same fact at once, one raises FactClosed.
        """
        ...

    async def invalidate_fact(self, organization_id: str, wanted: Invalidate, key: RequestKey | None) -> Fact:
        """Closes a fact; one that is closed for the same time stays as it is."""
        ...

    async def delete_fact(self, organization_id: str, fact_id: str, key: RequestKey | None) -> None:
        """Erases a fact; one that is not there is no error. The others of its chain stay, closed as they were."""
        ...

    async def list_fact_history(self, organization_id: str, fact_id: str, page: PageQuery) -> Page[Fact]:
        """The chain of facts that superseded one another, by the order in which they were stored."""
        ...

    async def get_bundle(
        self, organization_id: str, where: FactFilter, max_episodes: int, max_facts: int
    ) -> MemoryBundle:
        """The newest episodes and the most salient facts that hold, as one consistent read."""
        ...

    async def list_scopes(self, organization_id: str, name_prefix: str | None, page: PageQuery) -> Page[ScopeSummary]:
        """The scopes that hold anything, by kind, then by id."""
        ...

    async def erase_scope(self, organization_id: str, scope: Scope, key: RequestKey | None) -> ScopeErasure:
        """Erases all of a scope; what is written later is kept."""
        ...

    async def search_words(
        self, organization_id: str, where: EpisodeFilter | FactFilter, terms: Sequence[str], limit: int
    ) -> list[tuple[str, float]]:
        """Ids and scores of those that have at least one of the terms, best first."""
        ...

    async def newest(self, organization_id: str, where: EpisodeFilter | FactFilter, limit: int) -> list[Episode | Fact]:
        """Those that were learned last, newest first."""
        ...

    async def pick(
        self, organization_id: str, where: EpisodeFilter | FactFilter, ids: Sequence[str]
    ) -> dict[str, Episode | Fact]:
        """Those among `ids` for which the filter holds, by id."""
        ...

    async def texts(self, ids: Sequence[str]) -> list[MemoryText]:
        """What the vector index is to hold of those among `ids` that exist."""
        ...

    async def note_all(self) -> int:
        """Makes every episode and fact news for the vector index; returns how many."""
        ...
