"""FlatIndex: an exact vector index in one SQLite file."""

import asyncio
import functools
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import structlog

from mnemesh_retrieval.engine_queries import query_vector, stored_vector
from mnemesh_retrieval.errors import CollectionMismatch, CollectionMissing, VectorIndexError
from mnemesh_retrieval.filters import EVERYTHING, Filter, HasId
from mnemesh_retrieval.flat import connections, file, search
from mnemesh_retrieval.flat.connections import Connections, RewriteReport, rewritten
from mnemesh_retrieval.flat.file import Entry, ids_of, labels_of, require_few_labels, time_of
from mnemesh_retrieval.flat.search import FlatComparison
from mnemesh_retrieval.index import CHECK_PAUSE, Collection, Hit, Point, SearchMode, SearchQuery
from mnemesh_retrieval.index_directory import DirectoryLock, DiskReserve, IndexMark

_log = structlog.get_logger("mnemesh.retrieval")


@dataclass(frozen=True, slots=True)
class OpenCollection:
    """A collection that `ensure_collection` opened."""

    number: int
    schema: Collection


class FlatIndex:
    """See NearestIndex. One process owns the directory.

    The points of a tenant are stored together in segments of up to 108, each a row of an SQLite file: a search of an
    agent's 5,000 points reads about 47 rows. Vectors are stored as eight-bit integers, so cosines are off by about
    0.001. The only memory is SQLite's cache, at most 4 MB for each of three connections.

    A search with `newest` ends with the segment that contains the last of these points, or after one segment for every
    16 of them. A collection may have at most one datetime field.

    Writes survive a crash of the process; they are flushed to disk every `flush_interval_seconds` and at `close`.
    Deleted bytes are overwritten in the file; its log may contain them until it restarts, at the latest with
    `rewrite`.
    """

    def __init__(self, directory: Path, lock: DirectoryLock, reserve: DiskReserve) -> None:
        self._directory = directory
        self._lock = lock
        self._reserve = reserve
        self._connections = Connections(directory)
        self._opened: dict[str, OpenCollection] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls, directory: Path, *, flush_interval_seconds: float = 10.0, reserve_bytes: int = 0
    ) -> "FlatIndex":
        """Opens the index, creating the directory if absent. The file is opened by the first call.

        Args:
            directory: the directory.
            flush_interval_seconds: how often writes are flushed to disk.
            reserve_bytes: writes raise IndexFull while the disk has less free space.

        Raises:
            IndexLocked: another process uses the directory.
        """

        def lock() -> DirectoryLock:
            directory.mkdir(parents=True, exist_ok=True)
            return DirectoryLock.acquire(directory)

        index = cls(directory, await asyncio.to_thread(lock), DiskReserve(directory, reserve_bytes))
        index._flusher = asyncio.create_task(index._flush_regularly(flush_interval_seconds), name="vectors-flush")
        return index

    @property
    def durable_after_seconds(self) -> float:
        """See NearestIndex.durable_after_seconds."""
        return 0.0

    @property
    def mark(self) -> IndexMark | None:
        """See NearestIndex.mark."""
        return IndexMark(self._directory)

    async def ensure_collection(self, collection: Collection) -> None:
        """See NearestIndex.ensure_collection."""
        if len(collection.datetime_fields) > 1:
            raise VectorIndexError(f"collection {collection.name!r} has more than one datetime field")
        await self._connections.write(lambda conn: self._ensure(conn, collection))

    async def collections(self) -> tuple[str, ...]:
        """See NearestIndex.collections."""
        found = await self._connections.write(
            lambda conn: conn.execute("SELECT name FROM collections ORDER BY name").fetchall()
        )
        return tuple(name for (name,) in found)

    async def drop_collection(self, name: str) -> None:
        """See NearestIndex.drop_collection."""

        def drop(conn: sqlite3.Connection) -> None:
            self._opened.pop(name, None)
            for (number,) in conn.execute("SELECT collection FROM collections WHERE name = ?", (name,)).fetchall():
                file.drop(conn, number)

        await self._connections.write(drop)

    async def write(self, collection: str, points: Sequence[Point]) -> None:
        """See NearestIndex.write."""
        schema = self._named(collection).schema
        entries, replaced, tenants = [], [], {}
        for point in {point.id: point for point in points}.values():
            replaced.append(point.id.bytes)
            vector = stored_vector(point, schema.dimension)
            if vector is not None:
                labels = labels_of(point.payload, schema)
                require_few_labels(labels, point.id)
                tenants[point.id.bytes] = labels[0] if schema.tenant_field in point.payload else ""
                time = time_of(point.payload, schema)
                entries.append(Entry(point.id.bytes, time, labels, np.asarray(vector, np.float32)))

        def replace(conn: sqlite3.Connection) -> None:
            self._reserve.require()
            number = self._named(collection).number
            file.delete(conn, number, schema.dimension, replaced)
            for tenant in dict.fromkeys(tenants.values()):
                of_tenant = [entry for entry in entries if tenants[entry.id] == tenant]
                file.insert(conn, number, schema.dimension, tenant, of_tenant)

        await self._connections.write(replace)

    async def delete(self, collection: str, ids: Sequence[UUID]) -> None:
        """See NearestIndex.delete."""
        opened = self._named(collection)
        deleted = [id_.bytes for id_ in ids]
        if deleted:
            await self._connections.write(
                lambda conn: file.delete(conn, opened.number, opened.schema.dimension, deleted)
            )

    async def delete_where(self, collection: str, condition: Filter) -> None:
        """See NearestIndex.delete_where."""
        opened = self._named(collection)

        def delete(conn: sqlite3.Connection) -> None:
            found = search.matches(conn, opened.number, opened.schema.dimension, condition)
            deleted = [id_ for batch, mask in found for id_ in ids_of(batch.headers[mask])]
            file.delete(conn, opened.number, opened.schema.dimension, deleted)

        await self._connections.write(delete)

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """See NearestIndex.search."""
        return (await self.compare(collection, query)).hits

    async def compare(self, collection: str, query: SearchQuery) -> FlatComparison:
        """See NearestIndex.compare."""
        opened = self._named(collection)
        if query.mode is not SearchMode.VECTOR:
            raise VectorIndexError("this index has no words")
        vector = query_vector(query, opened.schema.dimension)
        if vector is None:
            return FlatComparison(search.SearchState(), query.limit)

        def read(conn: sqlite3.Connection) -> FlatComparison:
            found = search.nearest(conn, opened.number, search.unit(vector), query)
            return FlatComparison(found, query.limit)

        return await self._connections.read(read)

    async def scan(
        self, collection: str, condition: Filter, *, after: UUID | None = None, limit: int = 1000
    ) -> list[UUID]:
        """See NearestIndex.scan."""
        opened = self._named(collection)
        last = after.bytes if after is not None else b""

        def read(conn: sqlite3.Connection) -> list[UUID]:
            if condition == EVERYTHING:
                return [UUID(bytes=id_) for id_ in file.next_point_ids(conn, opened.number, last, limit)]
            if isinstance(condition, HasId):
                known = file.point_ids(conn, opened.number, [id_.bytes for id_ in condition.ids])
                return [UUID(bytes=id_) for id_ in sorted(id_ for id_ in known if id_ > last)[:limit]]
            batches = search.matches(conn, opened.number, opened.schema.dimension, condition)
            found = [id_ for batch, mask in batches for id_ in ids_of(batch.headers[mask])]
            return [UUID(bytes=id_) for id_ in sorted(id_ for id_ in found if id_ > last)[:limit]]

        return await self._connections.read(read)

    async def count(self, collection: str, condition: Filter) -> int:
        """See NearestIndex.count."""
        opened = self._named(collection)

        def read(conn: sqlite3.Connection) -> int:
            if condition == EVERYTHING:
                return file.count_points(conn, opened.number)
            found = search.matches(conn, opened.number, opened.schema.dimension, condition)
            return sum(int(mask.sum()) for _, mask in found)

        return await self._connections.read(read)

    async def flush(self) -> None:
        """See NearestIndex.flush."""
        await self._connections.flush()

    async def verify(self, collection: str) -> None:
        """See NearestIndex.verify. Most of the time is left to other calls."""
        opened, after = self._named(collection), 0
        number, dimension = opened.number, opened.schema.dimension
        await self._connections.check(connections.verify_pages)
        while True:
            began = time.monotonic()
            last = await self._connections.check(
                functools.partial(connections.verify_segments, collection=number, dimension=dimension, after=after)
            )
            if last is None:
                break
            after = last
            await asyncio.sleep(CHECK_PAUSE * (time.monotonic() - began))
        await self._connections.check(lambda conn: connections.verify_lists(conn, number))

    async def set_aside(self, collection: str) -> str | None:  # noqa: ARG002  (one file has all collections)
        """See NearestIndex.set_aside. All collections are stored in one file."""
        self._opened.clear()
        moved_to = await self._connections.move_aside()
        return str(moved_to) if moved_to is not None else None

    async def rewrite(self) -> RewriteReport:
        """Rewrites the file without the space of deleted points, and empties its log.

        Writes wait meanwhile, some seconds for each million points. Damaged files that were moved aside are deleted.
        """

        return await self._connections.alone(lambda conn: rewritten(conn, self._directory))

    async def close(self) -> None:
        """See NearestIndex.close."""
        if self._closed:
            return
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        self._closed = True
        await self._connections.close()
        self._lock.release()

    def _ensure(self, conn: sqlite3.Connection, collection: Collection) -> None:
        row = conn.execute(
            "SELECT collection, dimension FROM collections WHERE name = ?", (collection.name,)
        ).fetchone()
        if row is None:
            created = conn.execute(
                "INSERT INTO collections (name, dimension) VALUES (?, ?)", (collection.name, collection.dimension)
            )
            row = (created.lastrowid, collection.dimension)
        number, dimension = row
        if dimension != collection.dimension:
            raise CollectionMismatch(
                f"collection {collection.name!r} holds vectors of {dimension} numbers, not of {collection.dimension}"
            )
        self._opened[collection.name] = OpenCollection(number, collection)

    def _named(self, collection: str) -> OpenCollection:
        self._connections.require_usable()
        opened = self._opened.get(collection)
        if opened is None:
            raise CollectionMissing(f"no collection {collection!r} is open")
        return opened

    async def _flush_regularly(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.flush()
            except VectorIndexError:
                _log.exception("vector_index_flush_failed", retry_seconds=interval)
