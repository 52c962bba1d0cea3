"""FlatIndex: the index of likeness in one SQLite file."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import numpy as np

from mnemesh_retrieval.errors import (
    CollectionMismatch,
    CollectionMissing,
    IndexClosed,
    RetrievalError,
    VectorIndexError,
)
from mnemesh_retrieval.filters import Filter
from mnemesh_retrieval.flat import file, search
from mnemesh_retrieval.flat.filters import labels_of, time_of
from mnemesh_retrieval.flat.segment import Entry, ids_of, require_few
from mnemesh_retrieval.index import Collection, Hit, Point, SearchMode, SearchQuery
from mnemesh_retrieval.lock import DirectoryLock
from mnemesh_retrieval.ranking import query_vector, stored_vector

T = TypeVar("T")
READERS: Final = 2
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A collection that was asked for."""

    number: int
    made: Collection


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewriting did; sizes are those of the file and its log."""

    points: dict[str, int]
    """How many points each collection has."""
    bytes_before: int
    bytes_after: int


class FlatIndex:
    """Holds one directory for one process. See NearestIndex.

    Points of a tenant are kept together in blocks of up to 64, each a row of an SQLite file: to search an agent's
    5,000 points is to read some 80 rows in a stretch. Vectors are kept in eight bits a number, so that cosines are off
    by a thousandth or so. Nothing is kept in memory but SQLite's cache, of at most 4 MB for each of three connections.

    A search that says how many of the `newest` points it looks at ends with the block that holds the last of them, or
    when it has read a block for every 16. Of a collection's datetime fields there is at most one.

    Writes survive the death of the process; they reach the disk platter every `flush_interval_seconds` and at `close`.
    Deleted bytes are overwritten where they stand; the log of the file may hold them until it begins anew, at the
    latest with `rewrite`.
    """

    def __init__(self, directory: Path, lock: DirectoryLock) -> None:
        self._directory = directory
        self._lock = lock
        self._pid = os.getpid()
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vectors-writer")
        self._reading = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="vectors-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._opened: dict[str, Opened] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._dirty = False
        self._closed = False

    @classmethod
    async def open(cls, directory: Path, *, flush_interval_seconds: float = 10.0) -> FlatIndex:
        """Take the directory, making it where it is not. IndexLocked if another process holds it."""

        def take() -> DirectoryLock:
            directory.mkdir(parents=True, exist_ok=True)
            return DirectoryLock.acquire(directory)

        index = cls(directory, await asyncio.to_thread(take))
        try:
            await index.collections()
        except BaseException:
            await index.close()
            raise
        index._flusher = asyncio.create_task(index._flush_regularly(flush_interval_seconds), name="vectors-flush")
        return index

    async def ensure_collection(self, collection: Collection) -> None:
        """See NearestIndex.ensure_collection."""
        if len(collection.datetime_fields) > 1:
            raise VectorIndexError(f"collection {collection.name!r} has more than one datetime field")
        await self._write(lambda conn: self._ensure(conn, collection))

    async def collections(self) -> tuple[str, ...]:
        """See NearestIndex.collections."""
        found = await self._write(lambda conn: conn.execute("SELECT name FROM collections ORDER BY name").fetchall())
        return tuple(name for (name,) in found)

    async def drop_collection(self, name: str) -> None:
        """See NearestIndex.drop_collection."""

        def drop(conn: sqlite3.Connection) -> None:
            self._opened.pop(name, None)
            for (number,) in conn.execute("SELECT collection FROM collections WHERE name = ?", (name,)).fetchall():
                file.drop(conn, number)

        await self._write(drop)

    async def write(self, collection: str, points: Sequence[Point]) -> None:
        """See NearestIndex.write."""
        made = self._named(collection).made
        kept, gone, tenants = [], [], {}
        for point in {point.id: point for point in points}.values():
            gone.append(point.id.bytes)
            vector = stored_vector(point, made.dimension)
            if vector is not None:
                labels = labels_of(point.payload, made)
                require_few(labels, point.id)
                tenants[point.id.bytes] = labels[0] if made.tenant_field in point.payload else ""
                vector_now = np.asarray(vector, np.float32)
                kept.append(Entry(point.id.bytes, time_of(point.payload, made), labels, vector_now))

        def put(conn: sqlite3.Connection) -> None:
            into = self._named(collection).number
            file.take_out(conn, into, made.dimension, gone)
            for tenant in dict.fromkeys(tenants.values()):
                file.put(conn, into, made.dimension, tenant, [entry for entry in kept if tenants[entry.id] == tenant])

        await self._write(put)

    async def delete(self, collection: str, ids: Sequence[UUID]) -> None:
        """See NearestIndex.delete."""
        asked = self._named(collection)
        gone = [id_.bytes for id_ in ids]
        if gone:
            await self._write(lambda conn: file.take_out(conn, asked.number, asked.made.dimension, gone))

    async def delete_where(self, collection: str, where: Filter) -> None:
        """See NearestIndex.delete_where."""
        asked = self._named(collection)

        def delete(conn: sqlite3.Connection) -> None:
            found = search.matches(conn, asked.number, asked.made.dimension, where)
            gone = [id_ for batch, mask in found for id_ in ids_of(batch.heads[mask])]
            file.take_out(conn, asked.number, asked.made.dimension, gone)

        await self._write(delete)

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """See NearestIndex.search."""
        asked = self._named(collection)
        if query.mode is not SearchMode.DENSE:
            raise VectorIndexError("this index keeps no words")
        vector = query_vector(query, asked.made.dimension)
        if vector is None:
            return []

        def look(conn: sqlite3.Connection) -> list[Hit]:
            found = search.nearest(conn, asked.number, search.unit(vector), query).best(query.limit)
            return [Hit(id_, score, {}, rank, None, score) for rank, (id_, score) in enumerate(found, start=1)]

        return await self._read(look)

    async def scan(self, collection: str, where: Filter, *, after: UUID | None = None, limit: int = 1000) -> list[UUID]:
        """See NearestIndex.scan."""
        asked = self._named(collection)
        behind = after.bytes if after is not None else b""

        def look(conn: sqlite3.Connection) -> list[UUID]:
            batches = search.matches(conn, asked.number, asked.made.dimension, where)
            found = [id_ for batch, mask in batches for id_ in ids_of(batch.heads[mask])]
            return [UUID(bytes=id_) for id_ in sorted(id_ for id_ in found if id_ > behind)[:limit]]

        return await self._read(look)

    async def count(self, collection: str, where: Filter) -> int:
        """See NearestIndex.count."""
        asked = self._named(collection)

        def look(conn: sqlite3.Connection) -> int:
            found = search.matches(conn, asked.number, asked.made.dimension, where)
            return sum(int(mask.sum()) for _, mask in found)

        return await self._read(look)

    async def flush(self) -> None:
        """See NearestIndex.flush."""
        if self._dirty:
            self._dirty = False
            await self._on(self._writing, lambda conn: conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    async def rewrite(self) -> Rewritten:
        """Write the file anew, so that it has no room of deleted points and its log is empty.

        Writes wait for it, some seconds for each million points.
        """

        def size() -> int:
            return sum(part.stat().st_size for part in self._directory.glob(f"{file.NAME}*"))

        def rewritten(conn: sqlite3.Connection) -> Rewritten:
            before = size()
            # Twice: what VACUUM writes goes to the log first.
            for command in ("wal_checkpoint(TRUNCATE)", None, "wal_checkpoint(TRUNCATE)"):
                conn.execute(f"PRAGMA {command}" if command else "VACUUM").fetchall()
            points = conn.execute(
                "SELECT name, (SELECT count(*) FROM points p WHERE p.collection = c.collection) FROM collections c"
            ).fetchall()
            return Rewritten(dict(points), before, size())

        return await self._on(self._writing, rewritten)

    async def close(self) -> None:
        """See NearestIndex.close."""
        if self._closed:
            return
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        self._closed = True
        await asyncio.to_thread(self._reading.shutdown, wait=True)
        await asyncio.to_thread(self._writing.shutdown, wait=True)
        for connection in reversed(self._connections):  # the last one, which writes, brings the log into the file
            connection.close()
        self._lock.release()

    def _ensure(self, conn: sqlite3.Connection, collection: Collection) -> None:
        row = conn.execute(
            "SELECT collection, dimension FROM collections WHERE name = ?", (collection.name,)
        ).fetchone()
        if row is None:
            made = conn.execute(
                "INSERT INTO collections (name, dimension) VALUES (?, ?)", (collection.name, collection.dimension)
            )
            row = (made.lastrowid, collection.dimension)
        number, dimension = row
        if dimension != collection.dimension:
            raise CollectionMismatch(
                f"collection {collection.name!r} holds vectors of {dimension} numbers, not of {collection.dimension}"
            )
        self._opened[collection.name] = Opened(number, collection)

    def _named(self, collection: str) -> Opened:
        self._usable()
        found = self._opened.get(collection)
        if found is None:
            raise CollectionMissing(f"no collection {collection!r} is open")
        return found

    async def _read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        return await self._on(self._reading, lambda conn: _in_transaction(conn, "BEGIN", act))

    async def _write(self, act: Callable[[sqlite3.Connection], T]) -> T:
        self._dirty = True
        return await self._on(self._writing, lambda conn: _in_transaction(conn, "BEGIN IMMEDIATE", act))

    async def _on(self, threads: ThreadPoolExecutor, act: Callable[[sqlite3.Connection], T]) -> T:
        self._usable()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads, lambda: act(self._connection(threads is self._writing)))
        except RetrievalError:
            raise
        except sqlite3.Error as error:
            raise VectorIndexError(f"the vector index failed: {error}") from error

    def _connection(self, writes: bool) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = (file.opened if writes else file.reader)(self._directory)
            self._local.connection = connection
            self._connections.append(connection)
        return connection

    def _usable(self) -> None:
        if self._closed:
            raise IndexClosed("the vector index is closed")
        if os.getpid() != self._pid:
            raise IndexClosed("the vector index belongs to the parent process; a forked child cannot use it")

    async def _flush_regularly(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.flush()
            except VectorIndexError:
                log.exception("flushing the vector index failed; it is tried again in %s s", interval)


def _in_transaction(conn: sqlite3.Connection, begin: str, act: Callable[[sqlite3.Connection], T]) -> T:
    conn.execute(begin)
    try:
        done = act(conn)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    return done
