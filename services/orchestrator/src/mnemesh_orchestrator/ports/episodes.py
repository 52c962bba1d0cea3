"""Episodes and facts of the recall service, as the orchestrator calls it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_orchestrator.model.episodes import Fact, MemoryBundle, MemoryHits, MemoryScope


class EpisodesPort(Protocol):
    """Episodes and facts. RecallPort.erase_agent erases an agent's own together with its messages."""

    async def bundle(self, scope: MemoryScope, max_episodes: int, max_facts: int) -> MemoryBundle:
        """Returns the latest episodes and the most salient facts that are valid now."""
        ...

    async def search_facts(self, scope: MemoryScope, query: str, limit: int) -> tuple[Fact, ...]:
        """Returns at most `limit` facts that are valid now, most similar to the query first."""
        ...

    async def search(
        self, scopes: Sequence[MemoryScope], query: str, *, limit: int, held_at: datetime | None = None
    ) -> MemoryHits:
        """Returns at most `limit` facts that are valid now or at `held_at`, and `limit` episodes that had started by
        then.
        """
        ...
