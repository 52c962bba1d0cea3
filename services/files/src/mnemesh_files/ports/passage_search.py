"""The Protocol of the archival service for searches of passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that a search found."""

    id: str
    file_id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class FoundPassages:
    """The result of a search, best first."""

    passages: tuple[FoundPassage, ...] = ()
    degraded: bool = False
    """True if only words were searched, because the embedder did not answer."""


class PassageSearchPort(Protocol):
    """Searches of the passages of files."""

    async def search(
        self, query: str, archive_ids: Sequence[str], file_ids: Sequence[str], limit: int
    ) -> FoundPassages:
        """Returns passages of archives by similarity and words. File ids restrict the search; none search all files.

        Raises:
            Unavailable, DeadlineExceeded: archival does not answer.
        """
        ...
