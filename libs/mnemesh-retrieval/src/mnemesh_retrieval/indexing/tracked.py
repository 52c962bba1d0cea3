"""A collection that the indexer keeps in agreement with its records, and its state in this process."""

from __future__ import annotations

from dataclasses import dataclass

from mnemesh_retrieval.indexing.ports import Source


@dataclass(slots=True)
class Tracked:
    """A registered collection. Times are those of the monotonic clock."""

    key: str
    source: Source
    available: bool = False
    """True if the collection is open in the index."""
    complete: bool = False
    """True if the index has every record with current words, except those of the newest changes."""
    has_current_words: bool = True
    """False if points have words of another version of the analysis."""
    blocked_until: float = 0.0
    """No changes are applied before this time, because the last attempt failed."""
    failure: Exception | None = None
    """The last error, until an attempt succeeds; it is logged once."""
    rebuilding: bool = False
    """True if the collection was created empty while there were records."""
    total: int = 0
    """The number of records when the check that runs, or the last one, began."""
    processed: int = 0
    """The number of records that this check has reached."""
    without_point: int = 0
    """The number of records without a point when the last check ended: their texts have no vector."""
    checked_at: float | None = None
    """When the last check ended; None if none has since the collection was opened."""

    @property
    def name(self) -> str:
        """The name of the collection in the index."""
        return self.source.schema.name

    def is_ready(self, now: float) -> bool:
        """Returns whether changes of the collection can be applied."""
        return self.available and now >= self.blocked_until
