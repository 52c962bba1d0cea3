"""Vector indexes that cost little until a test uses them: recall's is in memory, archival's opens at its first use."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.filters import Filter
from mnemesh_retrieval.flat import FlatIndex, file
from mnemesh_retrieval.flat.connections import Connections, library_errors
from mnemesh_retrieval.index import Collection
from mnemesh_retrieval.index_directory import DiskReserve

T = TypeVar("T")
INDEXES: dict[str, Callable[[Path], Any]] = {
    "recall": lambda _: MemoryIndex(),
    "archival": lambda data_dir: IndexOnDemand(data_dir / "archival-index"),
}
"""Service → its index. Its `assemble` accepts it."""


class MemoryIndex(FlatIndex):
    """A FlatIndex whose file is in memory. Only its files, threads and flushes are missing."""

    def __init__(self) -> None:
        super().__init__(Path(), None, DiskReserve(Path(), 0))  # type: ignore[arg-type]
        self._connections = _MemoryConnections()

    @property
    def mark(self) -> None:
        """None: the index ends with its records."""

    async def close(self) -> None:
        """Discards the index."""
        await self._connections.close()


class _MemoryConnections(Connections):
    """One connection to a database in memory. Each transaction is a plain function call on the event loop."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        file.create_tables(self._memory)

    async def flush(self) -> None:
        """Does nothing: the index has no stable storage."""
        self.require_usable()

    async def close(self) -> None:
        """Closes the connection."""
        if not self._closed:
            self._closed = True
            self._memory.close()

    async def _on(self, threads: ThreadPoolExecutor, act: Callable[[sqlite3.Connection], T]) -> T:
        self.require_usable()
        with library_errors():
            result = act(self._memory)
        await asyncio.sleep(0)
        return result


class IndexOnDemand:
    """An EdgeIndex that opens at the first call that needs its files: it takes 40 ms of CPU to create them.

    Until then it has the collections that were asked for, and they are empty.
    """

    mark = None
    durable_after_seconds = 0.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._collections: dict[str, Collection] = {}
        self._opening: asyncio.Task[EdgeIndex] | None = None

    async def collections(self) -> tuple[str, ...]:
        """See NearestIndex.collections."""
        return tuple(sorted(self._collections)) if self._opening is None else await (await self._opened()).collections()

    async def ensure_collection(self, collection: Collection) -> None:
        """See NearestIndex.ensure_collection."""
        if self._opening is None:
            self._collections.setdefault(collection.name, collection)
        else:
            await (await self._opened()).ensure_collection(collection)

    async def count(self, collection: str, condition: Filter) -> int:
        """See NearestIndex.count."""
        return 0 if self._opening is None else await (await self._opened()).count(collection, condition)

    async def flush(self) -> None:
        """See NearestIndex.flush."""
        if self._opening is not None:
            await (await self._opened()).flush()

    async def close(self) -> None:
        """See NearestIndex.close."""
        if self._opening is not None:
            await (await self._opened()).close()

    def __getattr__(self, name: str) -> Any:
        """Returns a method of the index that opens it first."""

        async def call(*args: Any, **options: Any) -> Any:
            return await getattr(await self._opened(), name)(*args, **options)

        return call

    async def _opened(self) -> EdgeIndex:
        """Returns the open index. A caller that is cancelled does not interrupt the opening."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> EdgeIndex:
        index = await EdgeIndex.open(self._directory)
        for collection in self._collections.values():
            await index.ensure_collection(collection)
        return index
