"""ServerIndex: a VectorIndex on a Qdrant server or cluster."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from mnemesh_kit.network import may_use_proxy
from qdrant_client import AsyncQdrantClient, models

from mnemesh_retrieval.engine_queries import (
    AllPoints,
    PointQuery,
    Scored,
    SearchedComparison,
    compare_by_search,
    listed_ids,
    query_vector,
    require_one_list,
    sorted_matches,
    sorted_scores,
    stored_vector,
    word_match,
)
from mnemesh_retrieval.errors import CollectionMissing, IndexClosed
from mnemesh_retrieval.filters import Filter
from mnemesh_retrieval.index import (
    Candidates,
    Collection,
    Hit,
    ListQuery,
    Payload,
    Point,
    Position,
    SearchMode,
    SearchQuery,
    StoredPoint,
    WriteMode,
)
from mnemesh_retrieval.server.protocol import (
    DENSE,
    TEXT,
    Features,
    ServerSettings,
    answered,
    ensure,
    own_name,
    position_of,
    server_filter,
    server_name,
    stored_point,
    with_runs,
)
from mnemesh_retrieval.words.sparse import document_vector, query_numbers

Target = list[float] | models.SparseVector | None


class PointSearch:
    """Searches collections by their names on the server. The client's errors are raised as they are."""

    def __init__(self, client: AsyncQdrantClient, features: Features) -> None:
        self._client = client
        self._features = features

    async def score(self, name: str, dimension: int, query: SearchQuery) -> Scored:
        """Returns the nearest points by vector, or those by words."""
        if query.mode is SearchMode.VECTOR:
            return await self._nearest(name, query_vector(query, dimension), DENSE, query)
        found = await self._nearest(name, _sparse(_words_of(query)), TEXT, query)
        return [(id_, score) for id_, score in found if score > 0]

    async def candidates(self, name: str, dimension: int, query: SearchQuery) -> Candidates:
        """See VectorIndex.candidates."""
        words = _words_of(query)
        dense, found = await asyncio.gather(
            self._nearest(name, query_vector(query, dimension), DENSE, query),
            self._points(name, _sparse(words), TEXT, query, with_vectors=[TEXT]),
        )
        texts = [
            word_match(UUID(str(point.id)), point.score, words, sparse.indices, sparse.values)
            for point in found
            if words
            and isinstance(point.vector, dict)
            and isinstance(sparse := point.vector[TEXT], models.SparseVector)
        ]
        return Candidates(dense, sorted_matches(texts))

    async def _nearest(self, name: str, target: Target, using: str, query: SearchQuery) -> Scored:
        found = await self._points(name, target, using, query)
        return sorted_scores([(UUID(str(point.id)), point.score) for point in found])

    async def _points(
        self, name: str, target: Target, using: str, query: SearchQuery, with_vectors: bool | list[str] = False
    ) -> list[models.ScoredPoint]:
        if target is None:
            return []
        response = await self._client.query_points(
            name,
            query=target,
            using=using,
            query_filter=server_filter(query.filter, self._features),
            limit=query.limit,
            with_payload=False,
            with_vectors=with_vectors,
        )
        return response.points


def _words_of(query: SearchQuery) -> Mapping[int, int]:
    return query_numbers(query.text) if query.mode is not SearchMode.VECTOR else {}


def _sparse(words: Iterable[int]) -> models.SparseVector | None:
    numbers = list(words)
    return models.SparseVector(indices=numbers, values=[1.0] * len(numbers)) if numbers else None


_MODES: Final = {
    WriteMode.UPSERT: models.UpdateMode.UPSERT,
    WriteMode.INSERT_ABSENT: models.UpdateMode.INSERT_ONLY,
    WriteMode.UPDATE_PRESENT: models.UpdateMode.UPDATE_ONLY,
}
_NO_POINT: Final = models.Filter(must=[models.HasIdCondition(has_id=[])])


class PointWriter:
    """Writes points with the features of the server. The client's errors are raised as they are."""

    def __init__(self, client: AsyncQdrantClient, features: Features) -> None:
        self._client = client
        self._features = features

    async def write(self, name: str, collection: Collection, points: Sequence[Point], mode: WriteMode) -> None:
        """Writes points to the collection that the server knows by `name`. Of points with the same id, the last one."""
        whole = list({point.id: self._struct(point, collection) for point in points}.values())
        if not whole:
            return
        if self._features.update_modes:
            await self._client.upsert(name, whole, wait=True, update_mode=_MODES[mode])
        else:
            await self._write_without_modes(name, whole, mode)

    def payload(self, fields: Payload, collection: Collection) -> dict[str, object]:
        """Returns payload fields as the server stores them."""
        return dict(fields) if self._features.substrings else with_runs(fields, tuple(collection.text_fields))

    async def _write_without_modes(self, name: str, points: list[models.PointStruct], mode: WriteMode) -> None:
        """Writes to a server of version 1.16.

        It has no write of present points only. Theirs are looked up first, and one that is deleted meanwhile returns.
        """
        if mode is WriteMode.UPDATE_PRESENT:
            present = await self._client.retrieve(name, [point.id for point in points], with_payload=False)
            ids = {record.id for record in present}
            points = [point for point in points if point.id in ids]
        unchanged = _NO_POINT if mode is WriteMode.INSERT_ABSENT else None
        if points:
            await self._client.upsert(name, points, wait=True, update_filter=unchanged)

    def _struct(self, point: Point, collection: Collection) -> models.PointStruct:
        vectors: dict[str, Any] = {}
        dense = stored_vector(point, collection.dimension)
        if dense is not None:
            vectors[DENSE] = dense
        words = document_vector(point.text)
        if words:
            vectors[TEXT] = models.SparseVector(indices=list(words), values=list(words.values()))
        return models.PointStruct(id=str(point.id), vector=vectors, payload=self.payload(point.payload, collection))


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ServerIndex:
    """See VectorIndex. Any number of processes may use a server at once.

    Word weights are computed here, as for the embedded engine, and the server multiplies them by the rarity
    of each word in the collection. Both engines therefore rank alike, and the server needs no model.

    A write is complete when the server has applied it; it is then in the log of the server and of its replicas. The
    server's configuration (`storage.wal`) decides what a power loss can lose.
    """

    def __init__(
        self, client: AsyncQdrantClient, prefix: str, flush_seconds: float = 10.0, features: Features | None = None
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._flush_seconds = flush_seconds
        self._features = features or Features()
        self._writer = PointWriter(client, self._features)
        self._searches = PointSearch(client, self._features)
        self._known: dict[str, Collection] = {}
        self._closed = False

    @classmethod
    async def open(cls, settings: ServerSettings) -> "ServerIndex":
        """Connects. Raises IndexUnavailable if the server does not answer, VectorIndexError if it is too old."""
        uses_proxy = may_use_proxy(settings.url)
        client = AsyncQdrantClient(
            url=settings.url,
            api_key=settings.api_key or None,
            grpc_port=settings.grpc_port,
            prefer_grpc=True,
            timeout=settings.timeout_seconds,
            check_compatibility=False,
            grpc_options={"grpc.enable_http_proxy": int(uses_proxy)},
            trust_env=uses_proxy,
        )
        try:
            async with answered("version"):
                features = Features.of((await client.info()).version)
        except BaseException:
            await client.close()
            raise
        return cls(client, settings.prefix, settings.flush_seconds, features)

    async def ensure_collection(self, collection: Collection) -> None:
        """See VectorIndex.ensure_collection."""
        self._usable()
        async with answered(collection.name):
            await ensure(self._client, server_name(self._prefix, collection.name), collection, self._features)
        self._known[collection.name] = collection

    async def collections(self) -> tuple[str, ...]:
        """See VectorIndex.collections."""
        self._usable()
        async with answered("collections"):
            found = (await self._client.get_collections()).collections
        names = (own_name(self._prefix, each.name) for each in found)
        return tuple(sorted(name for name in names if name is not None))

    async def drop_collection(self, name: str) -> None:
        """See VectorIndex.drop_collection."""
        self._usable()
        self._known.pop(name, None)
        async with answered(name):
            await self._client.delete_collection(server_name(self._prefix, name))

    async def write(self, collection: str, points: Sequence[Point], mode: WriteMode = WriteMode.UPSERT) -> None:
        """See VectorIndex.write. On a cluster, the write is atomic for the points of one shard only."""
        name, known = self._named(collection)
        async with answered(collection):
            await self._writer.write(name, known, points, mode)

    async def set_payload(self, collection: str, ids: Sequence[UUID], fields: Payload) -> None:
        """See VectorIndex.set_payload."""
        name, known = self._named(collection)
        present = models.Filter(must=[models.HasIdCondition(has_id=[str(id_) for id_ in ids])])
        async with answered(collection):
            # Selected by filter, because unknown ids would be an error.
            payload = self._writer.payload(fields, known)
            await self._client.set_payload(name, payload, models.FilterSelector(filter=present), wait=True)

    async def get(self, collection: str, ids: Sequence[UUID], *, with_vectors: bool = False) -> list[StoredPoint]:
        """See VectorIndex.get."""
        name, _ = self._named(collection)
        if not ids:
            return []
        wanted: bool | list[str] = [DENSE] if with_vectors else False
        unique = [str(id_) for id_ in dict.fromkeys(ids)]
        async with answered(collection):
            records = await self._client.retrieve(name, unique, with_payload=True, with_vectors=wanted)
        found = {UUID(str(record.id)): stored_point(record) for record in records}
        return [found[id_] for id_ in ids if id_ in found]

    async def delete(self, collection: str, ids: Sequence[UUID]) -> None:
        """See VectorIndex.delete."""
        name, _ = self._named(collection)
        if ids:
            async with answered(collection):
                selected = models.PointIdsList(points=[str(id_) for id_ in ids])
                await self._client.delete(name, selected, wait=True)

    async def delete_where(self, collection: str, condition: Filter) -> None:
        """See VectorIndex.delete_where."""
        name, _ = self._named(collection)
        async with answered(collection):
            await self._client.delete(
                name, models.FilterSelector(filter=server_filter(condition, self._features)), wait=True
            )

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """See VectorIndex.search."""
        require_one_list(query)
        name, known = self._named(collection)
        async with answered(collection):
            found = await self._searches.score(name, known.dimension, query)
        if not query.with_payload:
            return [Hit(id_, score, {}) for id_, score in found]
        payloads = {point.id: point.payload for point in await self.get(collection, [id_ for id_, _ in found])}
        return [Hit(id_, score, payloads[id_]) for id_, score in found if id_ in payloads]

    async def compare(self, collection: str, query: SearchQuery) -> SearchedComparison:
        """See NearestIndex.compare."""
        return await compare_by_search(self.search, collection, query)

    async def candidates(self, collection: str, query: SearchQuery) -> Candidates:
        """See VectorIndex.candidates."""
        name, known = self._named(collection)
        async with answered(collection):
            return await self._searches.candidates(name, known.dimension, query)

    async def list_points(self, collection: str, query: ListQuery) -> list[StoredPoint]:
        """See VectorIndex.list_points."""
        listing = listed_ids(query)
        positions: list[Position] | None = None
        while True:
            try:
                request = next(listing) if positions is None else listing.send(positions)
            except StopIteration as done:
                return await self.get(collection, done.value)
            positions = await self._positions(collection, request, query)

    async def scan(
        self,
        collection: str,
        condition: Filter,
        *,
        after: UUID | None = None,
        limit: int = 1000,
    ) -> list[UUID]:
        """See VectorIndex.scan."""
        name, _ = self._named(collection)
        async with answered(collection):
            records, _ = await self._client.scroll(
                name,
                server_filter(condition, self._features),
                limit=limit + (after is not None),
                offset=str(after) if after is not None else None,
                with_payload=False,
            )
        ids = [UUID(str(record.id)) for record in records]
        return [id_ for id_ in ids if id_ != after][:limit]

    async def count(self, collection: str, condition: Filter) -> int:
        """See VectorIndex.count."""
        name, _ = self._named(collection)
        async with answered(collection):
            return (await self._client.count(name, server_filter(condition, self._features), exact=True)).count

    async def facets(self, collection: str, field: str, condition: Filter, *, limit: int = 1000) -> dict[str, int]:
        """See VectorIndex.facets."""
        name, _ = self._named(collection)
        async with answered(collection):
            found = await self._client.facet(
                name, field, server_filter(condition, self._features), limit=limit, exact=True
            )
        return {str(hit.value): hit.count for hit in found.hits}

    @property
    def durable_after_seconds(self) -> float:
        """See VectorIndex.durable_after_seconds. The server flushes at the interval of its own configuration."""
        return self._flush_seconds

    @property
    def mark(self) -> None:
        """See VectorIndex.mark."""
        return None

    async def flush(self) -> None:
        """See VectorIndex.flush. The server flushes by itself; see `durable_after_seconds`."""
        self._usable()

    async def verify(self, collection: str) -> None:
        """See VectorIndex.verify. The server verifies its own files."""
        self._named(collection)

    async def set_aside(self, collection: str) -> str | None:
        """See VectorIndex.set_aside. The collection is deleted."""
        await self.drop_collection(collection)
        return None

    async def close(self) -> None:
        """See VectorIndex.close."""
        if not self._closed:
            self._closed = True
            await self._client.close()

    def _usable(self) -> None:
        if self._closed:
            raise IndexClosed("the vector index is closed")

    def _named(self, collection: str) -> tuple[str, Collection]:
        self._usable()
        known = self._known.get(collection)
        if known is None:
            raise CollectionMissing(f"no collection {collection!r} is open")
        return server_name(self._prefix, collection), known

    async def _positions(self, collection: str, request: PointQuery, query: ListQuery) -> list[Position]:
        if isinstance(request, AllPoints):
            return [Position(EPOCH, id_) for id_ in await self._list_ids(collection, request.condition)]
        direction = models.Direction.DESC if query.descending else models.Direction.ASC
        name, _ = self._named(collection)
        async with answered(collection):
            records, _ = await self._client.scroll(
                name,
                server_filter(request.condition, self._features),
                limit=request.limit,
                order_by=models.OrderBy(key=query.order_by, direction=direction),
                with_payload=[query.order_by],
            )
        return [position_of(record, query.order_by) for record in records]

    async def _list_ids(self, collection: str, condition: Filter, page: int = 10_000) -> list[UUID]:
        ids: list[UUID] = []
        while True:
            found = await self.scan(collection, condition, after=ids[-1] if ids else None, limit=page)
            ids.extend(found)
            if len(found) < page:
                return ids
