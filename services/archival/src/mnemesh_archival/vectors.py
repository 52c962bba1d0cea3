"""The embedders that archives name, and the vector index of passages, which the indexer keeps current."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from collections.abc import Collection as AbstractCollection
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from uuid import UUID

import numpy as np
import structlog
from mnemesh_kit.call_context import remaining
from mnemesh_kit.errors import MnemeshError
from mnemesh_retrieval.embedder import CountedVectors, Embedder, Vector, embed_counted, normalized
from mnemesh_retrieval.errors import (
    EmbedderError,
    EmbedderMisconfigured,
    EmbedderRejected,
    IndexDamaged,
    VectorIndexError,
)
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.filters import Filter, HasId, Match, MatchAll, MatchAny, TimeRange, all_of
from mnemesh_retrieval.index import Candidates, Collection, SearchMode, SearchQuery, VectorIndex, instant
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Change, Claim, Record
from mnemesh_retrieval.registry import EmbedderSettings, make_embedder
from mnemesh_retrieval.words.sparse import VERSION

from mnemesh_archival.errors import EmbedderUnavailable, EmbedderUnknown, VectorIndexUnavailable
from mnemesh_archival.model.passages import NUMBER
from mnemesh_archival.store.index_changes import IndexRecords
from mnemesh_archival.store.tables import IndexedPassage, PassageScope

APPLY_SECONDS: Final = 5.0
"""How long a write waits for the index and the embedder. The record is durable, so the index may follow later."""


MAX_KEPT: Final = 64
"""The number of embedders over HTTP that are kept, so that callers that name many models do not fill the memory."""
MARGIN_SECONDS = 0.5
"""How long before the caller's deadline a call to an embedder is abandoned, so that its error still arrives."""


class Embedders:
    """Embedders by handle. Each is built when first used, and kept unless 64 others were used since."""

    def __init__(self, default: Embedder, settings: EmbedderSettings) -> None:
        self.default = default.handle
        self._settings = settings
        self._by_handle: dict[str, Embedder] = {default.handle: default}
        self._calls: Counter[str] = Counter()
        """The calls that use each embedder now."""

    def get(self, handle: str, field: str = "archive.embedder") -> Embedder:
        """Returns the embedder.

        Raises:
            EmbedderUnknown: the configuration does not allow to build it. `field` is the field of the request.
        """
        embedder = self._by_handle.pop(handle, None)
        if embedder is None:
            try:
                embedder = make_embedder(handle, self._settings)
            except EmbedderMisconfigured as error:
                raise EmbedderUnknown(handle, str(error), field) from error
        self._by_handle[handle] = embedder  # the last one is the one used last
        return embedder

    async def embed(self, handle: str, texts: Sequence[str], *, within: float | None = None) -> list[Vector]:
        """Returns one vector per text; see `embed_counted`."""
        return (await self.embed_counted(handle, texts, within=within)).vectors

    async def embed_counted(self, handle: str, texts: Sequence[str], *, within: float | None = None) -> CountedVectors:
        """Returns one vector per text, and the tokens of all if the embedder knows them.

        Args:
            handle: the embedder.
            texts: the texts.
            within: the time limit in seconds; by default what the caller's deadline leaves.

        Raises:
            EmbedderUnavailable: the embedder failed, or did not answer in time.
        """
        left = remaining()
        if within is None and left is not None:
            within = max(0.0, left - MARGIN_SECONDS)
        try:
            async with self._used(handle) as embedder, asyncio.timeout(within):
                return await embed_counted(embedder, texts)
        except TimeoutError as error:
            raise EmbedderUnavailable(handle, "no answer in time") from error
        except EmbedderError as error:
            raise EmbedderUnavailable(handle, str(error)) from error

    @asynccontextmanager
    async def _used(self, handle: str) -> AsyncIterator[Embedder]:
        """Yields an embedder, and then closes those that were not used for longest."""
        embedder = self.get(handle)
        self._calls[handle] += 1
        try:
            yield embedder
        finally:
            self._calls[handle] -= 1
            if not self._calls[handle]:
                del self._calls[handle]
            await self._close_unused()

    async def _close_unused(self) -> None:
        surplus = len(self._by_handle) - MAX_KEPT
        if surplus <= 0:
            return
        unused = [
            handle
            for handle in self._by_handle
            if handle != self.default and not handle.startswith("mnemesh/") and handle not in self._calls
        ]
        for embedder in [self._by_handle.pop(handle) for handle in unused[:surplus]]:
            await embedder.close()

    async def close(self) -> None:
        for embedder in self._by_handle.values():
            await embedder.close()
        self._by_handle.clear()


class CollectionEmbedder:
    """The embedder of a collection, for the indexer. One that the configuration does not allow is unavailable."""

    def __init__(self, embedders: Embedders, handle: str, dimension: int) -> None:
        self._embedders = embedders
        self.handle = handle
        self.dimension = dimension

    @property
    def similarity_weight(self) -> float:
        """See Embedder.similarity_weight."""
        return self._embedders.get(self.handle).similarity_weight

    @property
    def least_similarity(self) -> float:
        """See Embedder.least_similarity."""
        return self._embedders.get(self.handle).least_similarity

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See Embedder.embed."""
        try:
            return await self._embedders.embed(self.handle, texts)
        except (EmbedderUnavailable, EmbedderUnknown) as error:
            if isinstance(error.__cause__, EmbedderRejected):
                raise error.__cause__ from error
            raise EmbedderUnreachable(str(error)) from error

    async def close(self) -> None:
        """Does nothing: the embedder is shared."""


KEYWORD_FIELDS: Final = ("organization_id", "archive_id", "tags", "agent_id", "file_id", "folder_id", "source")


def collection(embedder: str, dimension: int) -> Collection:
    return Collection(
        f"passages:{embedder}",
        dimension,
        keyword_fields=KEYWORD_FIELDS,
        datetime_fields=("created_at",),
        tenant_field="archive_id",
    )


def payload(passage: IndexedPassage) -> dict[str, Any]:
    """Returns the fields of a passage by which searches filter."""
    return {
        "organization_id": passage.organization_id,
        "archive_id": passage.archive_id,
        "tags": list(passage.tags),
        "source": passage.source,
        "agent_id": passage.agent_id,
        "file_id": passage.file_id,
        "folder_id": passage.folder_id,
        "created_at": instant(passage.created_at),
    }


def scope_filter(scope: PassageScope) -> Filter:
    """Returns the filter of a search."""
    filter_ = scope.filter
    tags = MatchAll("tags", filter_.tags) if filter_.every_tag else MatchAny("tags", filter_.tags)
    return all_of(
        Match("organization_id", scope.organization_id),
        MatchAny("archive_id", scope.archive_ids) if scope.archive_ids is not None else None,
        tags if filter_.tags else None,
        Match("file_id", filter_.file_id) if filter_.file_id is not None else None,
        MatchAny("file_id", filter_.file_ids) if filter_.file_ids else None,
        Match("folder_id", filter_.folder_id) if filter_.folder_id is not None else None,
        MatchAny("source", tuple(source.name for source in filter_.sources)) if filter_.sources else None,
        TimeRange("created_at", filter_.since, filter_.until) if filter_.since or filter_.until else None,
    )


class PassageSource:
    """See mnemesh_retrieval.indexing.outbox.Source. A subject is a point id as text; a group is an archive."""

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

    async def find_existing(self, points: Sequence[UUID]) -> AbstractCollection[UUID]:
        """See Source.existing."""
        return await self._records.find_existing(self.embedder.handle, points)

    async def count(self) -> int:
        """See Source.count."""
        return await self._records.count(self.embedder.handle)


OPEN_SECONDS: Final = 5.0
"""How long the start waits for changes that the last process had not flushed."""
_log: Final = structlog.get_logger("mnemesh.archival")


class PassageIndex:
    """Passages in the vector index, in one collection per embedder, which is registered when it is first used.

    Example:
        >>> stored = await store.insert("org-1", batch, key, index.claim())
        >>> await index.apply(stored.changes)
        True
        >>> await index.candidates(scope, mode=SearchMode.TEXT, text="oak", vector=None, limit=10)
        Candidates(…)
    """

    def __init__(self, index: VectorIndex, indexer: Indexer, records: IndexRecords, embedders: Embedders) -> None:
        self._index = index
        self._indexer = indexer
        self._records = records
        self._embedders = embedders
        self._sources: dict[str, PassageSource] = {}
        self._registering = asyncio.Lock()

    async def open(self) -> None:
        """Registers and opens the collections of all archives and of all changes, and applies changes that wait."""
        dimensions = await self._records.embedders()
        for handle in dict.fromkeys(
            [*dimensions, *await self._records.list_pending_collections(), self._embedders.default]
        ):
            try:
                await self._source(handle, dimensions)
            except EmbedderUnknown as error:
                _log.warning("collection_not_opened", embedder=handle, error=str(error))
        await self._indexer.open()
        with suppress(TimeoutError, MnemeshError):
            async with asyncio.timeout(OPEN_SECONDS):
                await self._indexer.catch_up()

    def claim(self) -> Claim | None:
        """Returns the claim for changes that this process applies at once; None if no other process could."""
        return self._indexer.claim()

    async def apply(self, changes: Sequence[Change], within: float | None = APPLY_SECONDS) -> bool:
        """Applies changes, so that searches see them.

        Args:
            changes: the changes.
            within: the time limit in seconds, shortened by the deadline of the caller; None for no limit of its own.

        Returns:
            Whether all were applied. The others follow in the background.
        """
        left = remaining()
        if left is not None:
            within = max(0.0, min(APPLY_SECONDS if within is None else within, left - MARGIN_SECONDS))
        try:
            async with asyncio.timeout(within):
                for handle in {change.collection for change in changes}:
                    await self._source(handle)
                applied = await self._indexer.apply(changes)
        except (TimeoutError, EmbedderUnknown):
            applied = False
        if not applied:
            self._indexer.notify()
        return applied

    def notify(self) -> None:
        """Makes the background apply changes soon."""
        self._indexer.notify()

    async def behind(self, embedder: str, limit: int) -> Sequence[UUID] | None:
        """Returns the passages whose changes the collection has not; usually none.

        They are the newest `limit` ones. None if the collection lacks others, too, because it is being rebuilt or
        cannot be used.
        """
        try:
            source = await self._source(embedder)
        except EmbedderUnknown:
            return None
        if not self._indexer.is_complete(embedder):
            return None
        if not self._indexer.is_behind(embedder):
            return ()
        return [source.point_id(subject) for subject in await self._indexer.list_unapplied(embedder, limit)]

    async def candidates(
        self, scope: PassageScope, *, mode: SearchMode, text: str, vector: Vector | None, limit: int
    ) -> Candidates:
        """Returns the best passages by words and the best by vector similarity, up to `limit` each.

        The scope names the embedder. Candidates may have been deleted or changed since.

        Raises:
            VectorIndexUnavailable: the index cannot be used now.
        """
        assert scope.embedder is not None  # noqa: S101 - a search has a scope for each embedder
        source = await self._source(scope.embedder)
        query = SearchQuery(mode, text=text, vector=vector, filter=scope_filter(scope), limit=limit)
        try:
            return await self._index.candidates(source.schema.name, query)
        except VectorIndexError as error:
            await self._note(source, error)
            raise VectorIndexUnavailable(f"The vector index is unavailable: {error}.") from error

    async def similarities(self, scope: PassageScope, vector: Vector, point_ids: Sequence[UUID]) -> dict[UUID, float]:
        """Returns the similarities of those points that have a vector; none if the index cannot be used now.

        The scope names the embedder. Points that its filter excludes have none.
        """
        assert scope.embedder is not None  # noqa: S101 - a search has a scope for each embedder
        if not point_ids:
            return {}
        source = await self._source(scope.embedder)
        query = SearchQuery(
            SearchMode.VECTOR,
            vector=vector,
            # Without further conditions, the points decide alone, which costs the engine less.
            filter=all_of(scope_filter(scope) if scope.filter.narrows else None, HasId(tuple(point_ids))),
            limit=len(point_ids),
            with_payload=False,
        )
        try:
            found = await self._index.search(source.schema.name, query)
        except VectorIndexError as error:
            await self._note(source, error)
            return {}
        return {hit.id: hit.score for hit in found}

    async def vectors(self, embedder: str, point_ids: Sequence[UUID]) -> dict[UUID, tuple[float, ...]]:
        """Returns the vectors of those points that have one; none if the index cannot be used now."""
        try:
            source = await self._source(embedder)
            stored = await self._index.get(source.schema.name, point_ids, with_vectors=True)
        except EmbedderUnknown:
            return {}
        except VectorIndexError as error:
            await self._note(source, error)
            return {}
        return {point.id: tuple(point.vector.tolist()) for point in stored if point.vector is not None}

    async def _note(self, source: PassageSource, error: VectorIndexError) -> None:
        if isinstance(error, IndexDamaged):
            await self._indexer.report_damage(source.schema.name, error)
        _log.warning("vector_index_not_read", collection=source.schema.name, error=str(error))

    async def _source(self, handle: str, dimensions: Mapping[str, int] | None = None) -> PassageSource:
        """Returns the source of a collection. Raises EmbedderUnknown if its dimension is not known."""
        if (source := self._sources.get(handle)) is not None:
            return source
        async with self._registering:
            if (source := self._sources.get(handle)) is None:
                dimension = await self._dimension(handle, dimensions)
                schema = collection(handle, dimension)
                source = PassageSource(self._records, schema, CollectionEmbedder(self._embedders, handle, dimension))
                await self._indexer.register(handle, source)
                self._sources[handle] = source
        return source

    async def _dimension(self, handle: str, dimensions: Mapping[str, int] | None) -> int:
        """Returns the length of the vectors. The configuration may have changed since an archive got its embedder."""
        known = dimensions if dimensions is not None else await self._records.embedders()
        return known[handle] if handle in known else self._embedders.get(handle).dimension
