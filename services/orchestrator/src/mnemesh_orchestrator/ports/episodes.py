"""The recall service: episodes and facts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_orchestrator.model.episodes import MemoryBundle, MemoryHits, MemoryScope


class EpisodesPort(Protocol):
    """Episodes and facts (the recall room). EraseAgent of recall erases an agent's own with its messages."""

    async def bundle(self, scope: MemoryScope, max_episodes: int, max_facts: int) -> MemoryBundle:
        """The newest episodes and the most salient facts that hold now."""
        ...

    async def search(
        self, scopes: Sequence[MemoryScope], query: str, *, limit: int, held_at: datetime | None = None
    ) -> MemoryHits:
        """At most `limit` facts that hold, or held at a time, and `limit` episodes that had begun by then."""
        ...
