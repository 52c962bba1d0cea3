"""The vectors of episodes and facts, and these as the records from which they are derived."""

from __future__ import annotations

from collections.abc import Collection as AbstractCollection
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from mnemesh_retrieval.embedder import Embedder
from mnemesh_retrieval.filters import Filter, Match, MatchAny, all_of
from mnemesh_retrieval.index import Collection, NearestIndex, SearchMode, SearchQuery
from mnemesh_retrieval.indexing.records import Record

from mnemesh_recall.model.episode_operations import MemoryText
from mnemesh_recall.model.episodes import Scope
from mnemesh_recall.model.outbox import MEMORIES
from mnemesh_recall.store.base import IndexedMemories
from mnemesh_recall.vectors.collections import VectorCollection
from mnemesh_recall.vectors.status import IndexStatus

PREFIX: Final = "memories."
"""The prefix of the names of memory collections."""
MAX_COMPARED: Final = 20_000
"""The number of newest vectors in scope that an index without a graph compares, in addition to `include`."""


class MemoryVectors(VectorCollection):
    """The collection with the vectors of episodes and facts by one embedder."""

    def __init__(self, index: NearestIndex, embedder: Embedder, status: IndexStatus | None = None) -> None:
        """Creates it. Without a status, the collection counts as complete."""
        schema = Collection(
            f"{PREFIX}{embedder.handle}",
            dimension=embedder.dimension,
            keyword_fields=("organization_id", "kind", "scope"),
            tenant_field="scope",
        )
        super().__init__(MEMORIES, index, embedder, schema, status)

    async def search(
        self,
        organization_id: str,
        kind: str,
        scopes: Sequence[Scope],
        text: str,
        limit: int,
        include: Sequence[str] = (),
    ) -> dict[str, float]:
        """Returns the memories with the nearest vectors, by id with their similarities, best first.

        Args:
            organization_id: the organization.
            kind: `episode` or `fact`.
            scopes: the scopes to search; all if empty.
            text: the text whose vector is compared.
            limit: the largest number of ids.
            include: memories that are compared in any case.

        Raises:
            EmbedderUnavailable: the embedder cannot be reached.
            VectorIndexUnavailable: the index cannot be read now.
        """
        (vector,) = await self.embed([text])
        if not vector.any():
            return {}
        filter_: Filter = all_of(
            Match("organization_id", organization_id),
            Match("kind", kind),
            MatchAny("scope", tuple(scope.key for scope in scopes)) if scopes else None,
        )
        query = SearchQuery(
            mode=SearchMode.DENSE,
            vector=vector,
            filter=filter_,
            limit=limit,
            with_payload=False,
            newest=MAX_COMPARED,
            also=tuple(_uuid(id_) for id_ in include),
        )
        return {f"{kind}-{hit.id}": hit.score for hit in await self.nearest(query) if hit.score > 0}


class MemorySource:
    """See Source. The records are episodes and facts."""

    keep_without_vector = False
    words_version = None

    def __init__(self, memories: IndexedMemories, vectors: MemoryVectors) -> None:
        self._memories = memories
        self._vectors = vectors

    @property
    def schema(self) -> Collection:
        """See Source."""
        return self._vectors.schema

    @property
    def embedder(self) -> Embedder:
        """See Source."""
        return self._vectors.embedder

    async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
        """See Source."""
        return {memory.id: Record(memory.text, _payload(memory)) for memory in await self._memories.read(subjects)}

    def point_id(self, subject: str) -> UUID:
        """See Source."""
        return _uuid(subject)

    def subject_of(self, point_id: UUID) -> str:
        """See Source. Neither an episode nor a fact has this point."""
        return f"fact-{point_id}"

    def group_filter(self, group: str) -> Filter:
        """See Source. A group is a scope."""
        return Match("scope", group)

    async def list_subjects(self, after: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """See Source."""
        return [(id_, id_) for id_ in await self._memories.list_ids(after, limit)]

    async def existing(self, points: Sequence[UUID]) -> AbstractCollection[UUID]:
        """See Source."""
        ids = [f"{kind}-{point}" for point in points for kind in ("episode", "fact")]
        return {_uuid(id_) for id_ in await self._memories.existing(ids)}

    async def count(self) -> int:
        """See Source."""
        return await self._memories.count()


def _payload(memory: MemoryText) -> dict[str, str]:
    return {
        "organization_id": memory.organization_id,
        "kind": memory.id.partition("-")[0],
        "scope": memory.scope.key,
    }


def _uuid(memory_id: str) -> UUID:
    return UUID(memory_id.partition("-")[2])
