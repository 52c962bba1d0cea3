"""ServerIndex: a VectorIndex on a Qdrant server or cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from mnemesh_kit.proxies import may_use_proxy
from qdrant_client import AsyncQdrantClient, models

from mnemesh_retrieval.comparison import SearchedComparison, compared_by_search
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
    SearchQuery,
    StoredPoint,
    WriteMode,
)
from mnemesh_retrieval.listing import AllPoints, PointQuery, listed_ids
from mnemesh_retrieval.search_parts import require_one_list
from mnemesh_retrieval.server.calls import ServerSettings, answered, position_of, stored_point
from mnemesh_retrieval.server.features import Features
from mnemesh_retrieval.server.filters import server_filter
from mnemesh_retrieval.server.schema import DENSE, ensure, own_name, server_name
from mnemesh_retrieval.server.searching import PointSearch
from mnemesh_retrieval.server.writing import PointWriter

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
    async def open(cls, settings: ServerSettings) -> ServerIndex:
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
            found = await self._searches.scored(name, known.dimension, query)
        if not query.with_payload:
            return [Hit(id_, score, {}) for id_, score in found]
        payloads = {point.id: point.payload for point in await self.get(collection, [id_ for id_, _ in found])}
        return [Hit(id_, score, payloads[id_]) for id_, score in found if id_ in payloads]

    async def compare(self, collection: str, query: SearchQuery) -> SearchedComparison:
        """See NearestIndex.compare."""
        return await compared_by_search(self.search, collection, query)

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
    def shares_process(self) -> bool:
        """See VectorIndex.shares_process."""
        return False

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
            return [Position(EPOCH, id_) for id_ in await self._all_ids(collection, request.condition)]
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

    async def _all_ids(self, collection: str, condition: Filter, page: int = 10_000) -> list[UUID]:
        ids: list[UUID] = []
        while True:
            found = await self.scan(collection, condition, after=ids[-1] if ids else None, limit=page)
            ids.extend(found)
            if len(found) < page:
                return ids
