"""Episodes and facts of the recall service, as the orchestrator calls it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_orchestrator.model.episodes import EpisodeCommit, Fact, FactSource, MemoryBundle, MemoryHits, MemoryScope


class EpisodesPort(Protocol):
    """Episodes and facts. RecallPort.erase_agent erases an agent's own together with its messages."""

    async def bundle(self, scopes: Sequence[MemoryScope], max_episodes: int, max_facts: int) -> MemoryBundle:
        """Returns the latest episodes and the most salient facts that are valid now, of all scopes together."""
        ...

    async def commit(self, request_id: str, commit: EpisodeCommit) -> None:
        """Stores an episode and changes of facts, all or none.

        Raises NOT_FOUND if a message that it names does not exist any more (metadata: resource_id), FACT_CLOSED
        (metadata: fact_id), and ERASED.
        """
        ...

    async def search_facts(self, scope: MemoryScope, query: str, limit: int) -> tuple[Fact, ...]:
        """Returns at most `limit` facts that are valid now, most similar to the query first."""
        ...

    async def search(
        self,
        scopes: Sequence[MemoryScope],
        query: str,
        *,
        limit: int,
        held_at: datetime | None = None,
        asked_at: datetime | None = None,
        time_zone: str = "UTC",
    ) -> MemoryHits:
        """Returns at most `limit` facts that are valid now or at `held_at`, and `limit` episodes that had started by
        then.

        With `asked_at`, expressions of time in the query are resolved from that time: facts that were valid then come
        first; or the facts that were known then are the only ones, if the query asks for knowledge.
        """
        ...

    async def correct(
        self, request_id: str, scopes: Sequence[MemoryScope], fact_id: str, text: str, reason: str, source: FactSource
    ) -> Fact:
        """Replaces a fact of one of the scopes from now on, and returns the new one. Raises NOT_FOUND, FACT_CLOSED."""
        ...

    async def forget(
        self, request_id: str, scopes: Sequence[MemoryScope], fact_id: str, reason: str, source: FactSource
    ) -> Fact:
        """Closes a fact of one of the scopes, and returns it. Raises NOT_FOUND, FACT_CLOSED."""
        ...
