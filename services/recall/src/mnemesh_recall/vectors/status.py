"""The Protocol of what searches need from the indexer."""

from __future__ import annotations

from typing import Protocol

from mnemesh_retrieval.errors import IndexDamaged


class IndexStatus(Protocol):
    """The state of the vector index. The indexer implements it."""

    def is_complete(self, key: str) -> bool:
        """Returns whether the index has every record of a collection, except those of the newest changes."""
        ...

    async def report_damage(self, collection: str, error: IndexDamaged) -> None:
        """Has a collection verified soon, because a search found it damaged."""
        ...
