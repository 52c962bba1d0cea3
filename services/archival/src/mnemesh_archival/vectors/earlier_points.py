"""Upgrades passages of earlier versions: copies those that only the vector index has, and derives columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import structlog
from mnemesh_kit.config import StartupError
from mnemesh_retrieval.errors import VectorIndexError
from mnemesh_retrieval.index import VectorIndex

from mnemesh_archival.model.passages import Passage, PassageSource
from mnemesh_archival.store.base.index_records import IndexRecords
from mnemesh_archival.store.base.upgrade import UncopiedPassage, UpgradeStore
from mnemesh_archival.vectors.points import collection

PAGE: Final = 500
DERIVED: Final = 1_000
"""The number of passages in one transaction."""
LOGGED: Final = 10_000
"""The number of passages between two log lines."""
_log: Final = structlog.get_logger("mnemesh.archival")


class EarlierPoints:
    """The upgrade of an index of an earlier version. It is resumed after a crash, and does nothing once it is complete.

    A passage that the index does not have is missing: it does not exist, unless a later start finds it in an index that
    was restored meanwhile. Its row is deleted like that of a deleted passage.
    """

    def __init__(self, index: VectorIndex, store: UpgradeStore, records: IndexRecords) -> None:
        self._index = index
        self._store = store
        self._records = records

    async def copy(self) -> None:
        """Copies all passages.

        Raises:
            StartupError: the index cannot be read.
        """
        total = await self._store.count()
        if not total:
            return
        _log.info("passages_copy_started", passages=total)
        dimensions = await self._records.embedders()
        copied = missing = newly_missing = 0
        last: UUID | None = None
        while page := await self._store.uncopied(last, PAGE):
            last = page[-1].point_id
            found = await self._found(page, dimensions)
            lost = [each for each in page if each.point_id not in found]
            await self._store.fill([(each, found[each.point_id]) for each in page if each.point_id in found])
            newly_missing += await self._store.lose(lost)
            missing += len(lost)
            copied += len(page) - len(lost)
            if (copied + missing) // LOGGED != (copied + missing - len(page)) // LOGGED:
                _log.info("passages_copied", passages=copied, missing=missing, total=total)
        _log.info("passages_copy_finished", passages=copied)
        if missing:
            _log.error("passages_missing_in_index", passages=missing, since_this_start=newly_missing)

    async def derive(self) -> None:
        """Derives the continuity and the fingerprints of passages that were stored before these existed."""
        total = 0
        while derived := await self._store.derive(DERIVED):
            total += derived
        if total:
            _log.info("passages_derived", passages=total)

    async def _found(self, page: Sequence[UncopiedPassage], dimensions: Mapping[str, int]) -> dict[UUID, Passage]:
        points: dict[str, list[UUID]] = defaultdict(list)
        for each in page:
            points[each.embedder].append(each.point_id)
        found: dict[UUID, Passage] = {}
        try:
            existing = await self._index.collections()
            for embedder, ids in points.items():
                schema = collection(embedder, dimensions[embedder], existing)
                if schema.name in existing:
                    await self._index.ensure_collection(schema)
                    found |= {point.id: _passage(point.payload) for point in await self._index.get(schema.name, ids)}
        except VectorIndexError as error:
            raise StartupError(
                "The passages of this data directory are in the vector index only, and it cannot be read: "
                f"{error}. Restore it from a backup; or move it away, to continue without these passages."
            ) from error
        return found


def _passage(payload: dict[str, Any]) -> Passage:
    # An engine drops a value that was set to null.
    return Passage(
        id=payload["passage_id"],
        archive_id=payload["archive_id"],
        text=payload["text"],
        tags=tuple(payload["tags"]),
        metadata=payload.get("metadata"),
        source=PassageSource[payload["source"]],
        agent_id=payload.get("agent_id"),
        file_id=payload.get("file_id"),
        folder_id=payload.get("folder_id"),
        file_name=payload.get("file_name"),
        chunk_index=payload.get("chunk_index"),
        created_at=datetime.fromisoformat(payload["created_at"]),
        updated_at=datetime.fromisoformat(payload["updated_at"]),
    )
