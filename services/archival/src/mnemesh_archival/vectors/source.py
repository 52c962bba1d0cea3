"""The passages of one collection, as the indexer reads them."""

from __future__ import annotations

from collections.abc import Collection as AbstractCollection
from collections.abc import Mapping, Sequence
from uuid import UUID

import numpy as np
from mnemesh_retrieval.embedder import Embedder, Vector, normalized
from mnemesh_retrieval.filters import Filter, Match
from mnemesh_retrieval.index import Collection
from mnemesh_retrieval.indexing.records import Record
from mnemesh_retrieval.words.sparse import VERSION

from mnemesh_archival.model.given_vectors import NUMBER
from mnemesh_archival.store.base.index_records import IndexedPassage, IndexRecords
from mnemesh_archival.vectors.points import payload


class PassageSource:
    """See mnemesh_retrieval.indexing.records.Source. A subject is a point id as text; a group is an archive."""

    keep_without_vector = True
    words_version = VERSION

    def __init__(self, records: IndexRecords, schema: Collection, embedder: Embedder) -> None:
        self._records = records
        self.schema = schema
        self.embedder = embedder

    async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
        """See Source.read."""
        found = await self._records.read(self.embedder.handle, [UUID(subject) for subject in subjects])
        return {
            str(point): Record(each.text, payload(each), words=each.text, vector=self._given(each))
            for point, each in found.items()
        }

    def _given(self, passage: IndexedPassage) -> Vector | None:
        """Returns the vector that came with a passage; None if it has none of the collection's dimension."""
        if passage.given_vector is None:
            return None
        vector = np.frombuffer(passage.given_vector, dtype=NUMBER).astype(np.float32)
        return normalized(vector) if len(vector) == self.schema.dimension else None

    def point_id(self, subject: str) -> UUID:
        """See Source.point_id."""
        return UUID(subject)

    def subject_of(self, point_id: UUID) -> str:
        """See Source.subject_of."""
        return str(point_id)

    def group_filter(self, group: str) -> Filter:
        """See Source.group_filter."""
        return Match("archive_id", group)

    async def list_subjects(self, after: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """See Source.list_subjects."""
        points = await self._records.page(self.embedder.handle, UUID(after) if after is not None else None, limit)
        return [(str(point), str(point)) for point in points]

    async def existing(self, points: Sequence[UUID]) -> AbstractCollection[UUID]:
        """See Source.existing."""
        return await self._records.existing(self.embedder.handle, points)

    async def count(self) -> int:
        """See Source.count."""
        return await self._records.count(self.embedder.handle)
