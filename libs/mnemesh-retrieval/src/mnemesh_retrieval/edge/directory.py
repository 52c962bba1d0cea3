"""The directory of an EdgeIndex, with one shard per collection. Synchronous: EdgeIndex calls it from its thread."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from mnemesh_retrieval.damaged import discard, move_aside
from mnemesh_retrieval.edge.rewrite import DROPPED, RewriteReport, recover, rewrite
from mnemesh_retrieval.edge.schema import engine_config, stored_dimension
from mnemesh_retrieval.lock import DirectoryLock

_SHARD: Final = ".shard"


class ShardDirectory:
    """The files of shards that are not open. Its owner has the lock of the directory until `release`."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> ShardDirectory:
        """Creates the directory if absent, locks it, and completes what a crash has interrupted. Raises IndexLocked."""
        path.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock.acquire(path)
        recover(path, _SHARD)
        return cls(path, lock)

    def path_of(self, collection: str) -> Path:
        """Returns the path of the shard of a collection."""
        return self.path / f"{quote(collection, safe='')}{_SHARD}"

    def collections(self) -> tuple[str, ...]:
        """Returns the collections that have a shard, in order."""
        return tuple(unquote(path.name.removesuffix(_SHARD)) for path in sorted(self.path.glob(f"*{_SHARD}")))

    def drop(self, collection: str) -> None:
        """Deletes a shard, if there is one. After a crash, all of it or nothing is left."""
        path = self.path_of(collection)
        if path.exists():
            dropped = path.with_name(path.name + DROPPED)
            shutil.rmtree(dropped, ignore_errors=True)
            path.rename(dropped)
            shutil.rmtree(dropped)

    def rewrite(self, collection: str) -> RewriteReport:
        """Rewrites a shard from its live points."""
        path = self.path_of(collection)
        return rewrite(path, collection, engine_config(stored_dimension(path)))

    def move_aside(self, collection: str) -> str | None:
        """Moves a damaged shard out of the way. Returns the folder that it is in now; None if there is no shard."""
        moved_to = move_aside(self.path, [self.path_of(collection)])
        return str(moved_to) if moved_to is not None else None

    def discard_damaged(self) -> None:
        """Deletes the damaged shards that were moved aside."""
        discard(self.path)

    def release(self) -> None:
        """Releases the lock."""
        self._lock.release()
