"""EdgeIndex: a VectorIndex on shards of the embedded engine."""

import asyncio
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import structlog

from mnemesh_retrieval.edge.shard import (
    MAX_MAPPED_BYTES,
    RewriteReport,
    Shard,
    ShardDirectory,
    engine_error,
    is_panic,
    mapped_bytes,
    release_pages,
    surviving,
    write_back,
)
from mnemesh_retrieval.engine_queries import SearchedComparison, compare_by_search
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
from mnemesh_retrieval.index_directory import DiskReserve, IndexMark

T = TypeVar("T")
VERIFYING = ".verifying"
VERIFYING_ATTEMPTS = 3
"""A shard is damaged if the process ends this many times in a row while it reads all of it."""
VERIFIED_AT_ONCE = 100
"""The engine holds the interpreter lock while it reads points."""
_log = structlog.get_logger("mnemesh.retrieval")


class EdgeIndex:
    """See VectorIndex. One process owns the directory, which has one shard per collection.

    The engine holds the interpreter lock during its calls, so one worker thread serves all shards, and segments are
    never optimized while serving. Completed writes are in the engine's log and survive a crash of the process. They
    are flushed to disk every `flush_interval_seconds` and at `close`; a power loss can lose the writes since then.
    """

    def __init__(
        self, directory: ShardDirectory, reserve: DiskReserve, max_mapped_bytes: int = MAX_MAPPED_BYTES
    ) -> None:
        self._directory = directory
        self._reserve = reserve
        self._max_mapped_bytes = max_mapped_bytes
        self._pid = os.getpid()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vector-index")
        self._shards: dict[str, Shard] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._flushing = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        flush_interval_seconds: float = 10.0,
        reserve_bytes: int = 0,
        max_mapped_bytes: int = MAX_MAPPED_BYTES,
    ) -> "EdgeIndex":
        """Opens the index, creating the directory if absent.

        Args:
            directory: the directory.
            flush_interval_seconds: how often writes are flushed to disk.
            reserve_bytes: writes raise IndexFull while the disk has less free space.
            max_mapped_bytes: if more of the process's mapped files is resident, the index releases its pages at the
                next flush; pages that are used again are read from the page cache.

        Raises:
            IndexLocked: another process uses the directory.
        """
        shards = await asyncio.to_thread(ShardDirectory.open, directory)
        index = cls(shards, DiskReserve(directory, reserve_bytes), max_mapped_bytes)
        index._flusher = asyncio.create_task(index._flush_regularly(flush_interval_seconds), name="vector-index-flush")
        return index

    async def ensure_collection(self, collection: Collection) -> None:
        """See VectorIndex.ensure_collection."""
        await self._run(lambda: self._ensure(collection), opening=True)

    async def collections(self) -> tuple[str, ...]:
        """See VectorIndex.collections."""
        return await self._run(self._directory.collections)

    async def drop_collection(self, name: str) -> None:
        """See VectorIndex.drop_collection."""
        await self._run(lambda: self._drop(name))

    async def write(self, collection: str, points: Sequence[Point], mode: WriteMode = WriteMode.UPSERT) -> None:
        """See VectorIndex.write."""
        await self._on(collection, lambda shard: self._write(shard, points, mode))

    async def set_payload(self, collection: str, ids: Sequence[UUID], fields: Payload) -> None:
        """See VectorIndex.set_payload."""
        await self._on(collection, lambda shard: shard.set_payload(ids, fields))

    async def get(self, collection: str, ids: Sequence[UUID], *, with_vectors: bool = False) -> list[StoredPoint]:
        """See VectorIndex.get."""
        return await self._on(collection, lambda shard: shard.get(ids, with_vectors))

    async def delete(self, collection: str, ids: Sequence[UUID]) -> None:
        """See VectorIndex.delete."""
        await self._on(collection, lambda shard: shard.delete(ids))

    async def delete_where(self, collection: str, condition: Filter) -> None:
        """See VectorIndex.delete_where."""
        await self._on(collection, lambda shard: shard.delete_where(condition))

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """See VectorIndex.search."""
        return await self._on(collection, lambda shard: shard.search(query))

    async def compare(self, collection: str, query: SearchQuery) -> SearchedComparison:
        """See NearestIndex.compare."""
        return await compare_by_search(self.search, collection, query)

    async def candidates(self, collection: str, query: SearchQuery) -> Candidates:
        """See VectorIndex.candidates."""
        return await self._on(collection, lambda shard: shard.candidates(query))

    async def list_points(self, collection: str, query: ListQuery) -> list[StoredPoint]:
        """See VectorIndex.list_points."""
        return await self._on(collection, lambda shard: shard.list_points(query))

    async def scan(
        self,
        collection: str,
        condition: Filter,
        *,
        after: UUID | None = None,
        limit: int = 1000,
    ) -> list[UUID]:
        """See VectorIndex.scan."""
        return await self._on(collection, lambda shard: shard.scan(condition, after, limit))

    async def count(self, collection: str, condition: Filter) -> int:
        """See VectorIndex.count."""
        return await self._on(collection, lambda shard: shard.count(condition))

    async def facets(self, collection: str, field: str, condition: Filter, *, limit: int = 1000) -> dict[str, int]:
        """See VectorIndex.facets."""
        return await self._on(collection, lambda shard: shard.facets(field, condition, limit))

    @property
    def durable_after_seconds(self) -> float:
        """See VectorIndex.durable_after_seconds."""
        return 0.0

    @property
    def mark(self) -> IndexMark:
        """See VectorIndex.mark."""
        return IndexMark(self._directory.path)

    async def flush(self) -> None:
        """See VectorIndex.flush. The disk is waited for in another thread, so other calls are served meanwhile."""
        async with self._flushing:
            for name, shard in list(self._shards.items()):
                if not shard.dirty:
                    continue
                try:
                    await self._write_back(shard.path)
                    with suppress(CollectionMissing):
                        await self._on(name, Shard.flush)
                    await self._write_back(shard.path)
                except BaseException:
                    shard.dirty = True  # the next flush does it again
                    raise

    async def verify(self, collection: str) -> None:
        """See VectorIndex.verify. Other calls are served in between."""
        shard = self._directory.path_of(collection)
        marker = shard.with_name(f"{shard.name}{VERIFYING}")
        with surviving(marker, VERIFYING_ATTEMPTS, "verified"):
            last: UUID | None = None
            while True:
                began = time.monotonic()
                last = await self._on(collection, functools.partial(Shard.verify, after=last, limit=VERIFIED_AT_ONCE))
                if last is None:
                    return
                await asyncio.sleep(time.monotonic() - began)

    async def set_aside(self, collection: str) -> str | None:
        """See VectorIndex.set_aside."""
        return await self._run(lambda: self._set_aside(collection))

    async def rewrite(self) -> list[RewriteReport]:
        """Rewrites every collection from its live points, so that the bytes of deleted points leave the disk.

        It closes the collections, and all calls wait for it, some seconds for each 10,000 points. Use it only while no
        calls are served. Damaged files that were moved aside are deleted.
        """
        await self._run(self._directory.discard_damaged)
        return [await self._run(functools.partial(self._rewrite, name)) for name in await self.collections()]

    async def close(self) -> None:
        """See VectorIndex.close. Raises VectorIndexError if a collection could not be flushed."""
        if self._closed:
            return
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        shards, self._shards = self._shards, {}
        # A shard that cannot be flushed keeps neither the others open nor the directory locked.
        closed = await asyncio.gather(*(self._run(shard.close) for shard in shards.values()), return_exceptions=True)
        self._closed = True
        self._thread.shutdown(wait=True)
        self._directory.release()
        for error in closed:
            if error is not None:
                raise error

    async def _on(self, collection: str, act: Callable[[Shard], T]) -> T:
        def run() -> T:
            shard = self._shards.get(collection)
            if shard is None:
                raise CollectionMissing(f"no collection {collection!r} is open")
            try:
                return act(shard)
            except BaseException as error:
                if is_panic(error):
                    # The engine may hold locks for ever. The collection must be opened again.
                    self._shards.pop(collection, None)
                raise

        return await self._run(run)

    async def _run(self, act: Callable[[], T], *, opening: bool = False) -> T:
        self._usable()

        def run() -> T:
            try:
                return act()
            except RetrievalError:
                raise
            except BaseException as error:  # the engine raises bare Exceptions, and panics
                raise engine_error(error, opening=opening) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _write(self, shard: Shard, points: Sequence[Point], mode: WriteMode) -> None:
        self._reserve.require()
        shard.write(points, mode)

    def _set_aside(self, collection: str) -> str | None:
        shard = self._shards.pop(collection, None)
        if shard is not None:
            with suppress(BaseException):  # a damaged shard may fail in any way
                shard.engine.close()
        return self._directory.move_aside(collection)

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
            # A shard that is opened applies its log to its mapped files.
            self._reserve.require()
            path = self._directory.path_of(collection.name)
            self._shards[collection.name] = Shard.open(path, collection)

    def _drop(self, name: str) -> None:
        self._close(name)
        self._directory.drop(name)

    def _rewrite(self, name: str) -> RewriteReport:
        self._close(name)
        return self._directory.rewrite(name)

    def _close(self, name: str) -> None:
        shard = self._shards.pop(name, None)
        if shard is not None:
            shard.close()

    async def _write_back(self, path: Path) -> None:
        try:
            await asyncio.to_thread(write_back, path)
        except OSError as error:
            raise engine_error(error, opening=False) from error

    def _release_pages(self) -> None:
        if mapped_bytes() > self._max_mapped_bytes:
            release_pages(self._directory.path)

    async def _flush_regularly(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.flush()
                await self._run(self._release_pages)
            except VectorIndexError:
                _log.exception("vector_index_flush_failed", retry_seconds=interval)
