"""The Protocol of the upgrade from versions that stored the texts of passages in the vector index only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from mnemesh_archival.model.passages import Passage


@dataclass(frozen=True, slots=True)
class UncopiedPassage:
    """A passage whose content is not in SQL yet."""

    organization_id: str
    id: str
    point_id: UUID
    embedder: str


class UpgradeStore(Protocol):
    """Passages of earlier versions, which get their content from the vector index.

    Example:
        >>> some = await store.uncopied(None, 500)
        >>> found = ...  # the passages that the index has, by point
        >>> await store.fill([(each, found[each.point_id]) for each in some if each.point_id in found])
        >>> await store.lose([each for each in some if each.point_id not in found])
    """

    async def count(self) -> int:
        """Returns the number of passages without content, missing ones included."""

    async def uncopied(self, after: UUID | None, limit: int) -> Sequence[UncopiedPassage]:
        """Returns passages without content in the order of their points, after the point `after`."""

    async def fill(self, copies: Sequence[tuple[UncopiedPassage, Passage]]) -> None:
        """Stores the content of passages. Missing ones among them exist again."""

    async def lose(self, missing: Sequence[UncopiedPassage]) -> int:
        """Marks passages as missing: they do not exist until `fill`. Returns the number of those that were not."""

    async def derive(self, limit: int) -> int:
        """Derives what depends on the text, for up to `limit` passages of one archive that earlier versions stored.

        Every passage that `uncopied` does not return has its content by then. Returns their number; 0 at the end.
        """
