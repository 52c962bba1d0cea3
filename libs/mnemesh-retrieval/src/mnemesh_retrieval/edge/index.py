"""EdgeIndex: the vector index port on shards of the embedded engine."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

from mnemesh_retrieval.edge.bm25 import Bm25Encoder
from mnemesh_retrieval.edge.page_cache import MOST_MAPPED_BYTES, mapped_bytes, unmap_untouched
from mnemesh_retrieval.edge.rewrite import DROPPED, Rewritten, recover, rewrite
from mnemesh_retrieval.edge.shard import Shard, engine_config, stored_dimension
from mnemesh_retrieval.errors import CollectionMissing, IndexClosed, RetrievalError, VectorIndexError
from mnemesh_retrieval.filters import Filter
from mnemesh_retrieval.index import (
    Candidates,
    Collection,
    Hit,
    ListQuery,
    Payload,
    Point,
    SearchQuery,
    StoredPoint,
    WriteMode,
)
from mnemesh_retrieval.lock import DirectoryLock

T = TypeVar("T")
SHARD = ".shard"
log = logging.getLogger(__name__)


class EdgeIndex:
    """Holds one directory, one shard per collection in it, for one process.

    The engine never lets go of the interpreter lock, so one worker thread serves all shards, and segments are never
    optimized while serving. Acknowledged writes are in the engine's log and survive the death of the process; they
    reach the disk platter every `flush_interval_seconds` and at `close`, so a power loss can take that much.
    """

    def __init__(self, directory: Path, lock: DirectoryLock, most_mapped_bytes: int = MOST_MAPPED_BYTES) -> None:
        self._directory = directory
        self._lock = lock
        self._most_mapped_bytes = most_mapped_bytes
        self._pid = os.getpid()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vector-index")
        self._words = Bm25Encoder()
        self._shards: dict[str, Shard] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        flush_interval_seconds: float = 10.0,
        most_mapped_bytes: int = MOST_MAPPED_BYTES,
    ) -> EdgeIndex:
        """Take the directory, making it where it is not. IndexLocked if another process holds it.

        Where the process has more than `most_mapped_bytes` of files resident, the index lets go of its own at the next
        flush; what is used again comes back from the page cache.
        """
        index = cls(directory, await asyncio.to_thread(_take, directory), most_mapped_bytes)
        index._flusher = asyncio.create_task(index._flush_regularly(flush_interval_seconds), name="vector-index-flush")
        return index

    async def ensure_collection(self, collection: Collection) -> None:
        """See VectorIndex.ensure_collection."""
        await self._run(lambda: self._ensure(collection))

    async def collections(self) -> tuple[str, ...]:
        """See VectorIndex.collections."""
        paths = await self._run(lambda: sorted(self._directory.glob(f"*{SHARD}")))
        return tuple(unquote(path.name.removesuffix(SHARD)) for path in paths)

    async def drop_collection(self, name: str) -> None:
        """See VectorIndex.drop_collection."""
        await self._run(lambda: self._drop(name))

    async def write(self, collection: str, points: Sequence[Point], mode: WriteMode = WriteMode.UPSERT) -> None:
        """See VectorIndex.write."""
        await self._on(collection, lambda shard: shard.write(points, mode))

    async def set_payload(self, collection: str, ids: Sequence[UUID], fields: Payload) -> None:
        """See VectorIndex.set_payload."""
        await self._on(collection, lambda shard: shard.set_payload(ids, fields))

    async def get(self, collection: str, ids: Sequence[UUID], *, with_vectors: bool = False) -> list[StoredPoint]:
        """See VectorIndex.get."""
        return await self._on(collection, lambda shard: shard.get(ids, with_vectors))

    async def delete(self, collection: str, ids: Sequence[UUID]) -> None:
        """See VectorIndex.delete."""
        await self._on(collection, lambda shard: shard.delete(ids))

    async def delete_where(self, collection: str, where: Filter) -> None:
        """See VectorIndex.delete_where."""
        await self._on(collection, lambda shard: shard.delete_where(where))

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """See VectorIndex.search."""
        return await self._on(collection, lambda shard: shard.search(query))

    async def candidates(self, collection: str, query: SearchQuery) -> Candidates:
        """See VectorIndex.candidates."""
        return await self._on(collection, lambda shard: shard.candidates(query))

    async def list_points(self, collection: str, query: ListQuery) -> list[StoredPoint]:
        """See VectorIndex.list_points."""
        return await self._on(collection, lambda shard: shard.list_points(query))

    async def scan(
        self,
        collection: str,
        where: Filter,
        *,
        after: UUID | None = None,
        limit: int = 1000,
    ) -> list[UUID]:
        """See VectorIndex.scan."""
        return await self._on(collection, lambda shard: shard.scan(where, after, limit))

    async def count(self, collection: str, where: Filter) -> int:
        """See VectorIndex.count."""
        return await self._on(collection, lambda shard: shard.count(where))

    async def facets(self, collection: str, field: str, where: Filter, *, limit: int = 1000) -> dict[str, int]:
        """See VectorIndex.facets."""
        return await self._on(collection, lambda shard: shard.facets(field, where, limit))

    async def flush(self) -> None:
        """See VectorIndex.flush."""
        for name, shard in list(self._shards.items()):
            if shard.dirty and self._shards.get(name) is shard:
                await self._run(shard.flush)

    async def rewrite(self) -> list[Rewritten]:
        """Rewrite every collection from its live points, so that the bytes of deleted ones leave the disk.

        Collections are closed by it, and everything waits for it, some seconds for each 10,000 points: this is for a
        time when nobody is served.
        """
        return [await self._run(functools.partial(self._rewrite, name)) for name in await self.collections()]

    async def close(self) -> None:
        """See VectorIndex.close."""
        if self._closed:
            return
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            await self._run(shard.close)
        self._closed = True
        self._thread.shutdown(wait=True)
        self._lock.release()

    async def _on(self, collection: str, act: Callable[[Shard], T]) -> T:
        def run() -> T:
            shard = self._shards.get(collection)
            if shard is None:
                raise CollectionMissing(f"no collection {collection!r} is open")
            return act(shard)

        return await self._run(run)

    async def _run(self, act: Callable[[], T]) -> T:
        self._usable()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, act)
        except RetrievalError:
            raise
        except Exception as error:  # the engine raises bare Exceptions
            raise VectorIndexError(f"the vector index failed: {error}") from error

    def _usable(self) -> None:
        if self._closed:
            raise IndexClosed("the vector index is closed")
        if os.getpid() != self._pid:
            raise IndexClosed("the vector index belongs to the parent process; a forked child cannot use it")

    def _ensure(self, collection: Collection) -> None:
        shard = self._shards.get(collection.name)
        if shard is not None:
            shard.adopt(collection)
        else:
            self._shards[collection.name] = Shard.open(self._path(collection.name), collection, self._words)

    def _drop(self, name: str) -> None:
        shard = self._shards.pop(name, None)
        if shard is not None:
            shard.close()
        path = self._path(name)
        if path.exists():
            leaving = path.with_name(path.name + DROPPED)
            path.rename(leaving)
            shutil.rmtree(leaving)

    def _rewrite(self, name: str) -> Rewritten:
        shard = self._shards.pop(name, None)
        if shard is not None:
            shard.close()
        path = self._path(name)
        return rewrite(path, name, engine_config(stored_dimension(path)))

    def _path(self, name: str) -> Path:
        return self._directory / f"{quote(name, safe='')}{SHARD}"

    def _let_go(self) -> None:
        if mapped_bytes() > self._most_mapped_bytes:
            unmap_untouched(self._directory)

    async def _flush_regularly(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.flush()
                await self._run(self._let_go)
            except VectorIndexError:
                log.exception("flushing the vector index failed; it is tried again in %s s", interval)


def _take(directory: Path) -> DirectoryLock:
    directory.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock.acquire(directory)
    recover(directory, SHARD)
    return lock
