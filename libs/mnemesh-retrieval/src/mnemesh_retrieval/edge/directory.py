"""The directory of an EdgeIndex, with one shard per collection, and the rewrite of a shard from its live points.

Synchronous: EdgeIndex calls it from its thread. A shard is rewritten because the engine keeps deleted points in its
segments and its log.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import qdrant_edge as qe

from mnemesh_retrieval.edge.engine import engine_config, stored_dimension
from mnemesh_retrieval.index_directory import DirectoryLock, discard, move_aside

BUILDING = ".building"
CREATING = ".creating"
DROPPED = ".dropped"
REWRITTEN = ".rewritten"
PAGE = 500


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """The result of a rewrite. Sizes are the disk space of the files."""

    collection: str
    points: int
    bytes_before: int
    bytes_after: int


def recover(directory: Path, suffix: str) -> None:
    """Finishes or undoes what a crash interrupted, in a directory of shards with this suffix."""
    for creating in directory.glob(f"*{suffix}{CREATING}"):
        shutil.rmtree(creating.with_name(creating.name.removesuffix(CREATING)), ignore_errors=True)
        creating.unlink()
    for rewritten in directory.glob(f"*{suffix}{REWRITTEN}"):
        path = rewritten.with_name(rewritten.name.removesuffix(REWRITTEN))
        if path.exists():
            shutil.rmtree(rewritten)  # the swap did not start, and the old shard may have changed since
        else:
            rewritten.rename(path)
    for ending in (BUILDING, DROPPED):
        for leftover in directory.glob(f"*{suffix}{ending}"):
            shutil.rmtree(leftover)


def rewrite(path: Path, collection: str, config: qe.EdgeConfig) -> RewriteReport:
    """Replaces a shard that is not open by a copy of its live points."""
    building = path.with_name(path.name + BUILDING)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    old, new = qe.EdgeShard.load(str(path), config), qe.EdgeShard.create(str(building), config)
    try:
        for name, index in old.info().payload_schema.items():
            new.update(qe.UpdateOperation.create_field_index(name, index.params or index.data_type))
        points = _copy(old, new)
        new.flush()
    finally:
        old.close()
        new.close()
    before = disk_bytes(path)
    rewritten = path.with_name(path.name + REWRITTEN)
    dropped = path.with_name(path.name + DROPPED)
    building.rename(rewritten)
    path.rename(dropped)
    rewritten.rename(path)
    shutil.rmtree(dropped)
    return RewriteReport(collection, points, before, disk_bytes(path))


def _copy(old: qe.EdgeShard, new: qe.EdgeShard) -> int:
    copied = 0
    offset = None
    while True:
        records, offset = old.scroll(qe.ScrollRequest(offset=offset, limit=PAGE, with_payload=True, with_vector=True))
        if records:
            points = [qe.Point(record.id, record.vector or {}, record.payload or {}) for record in records]
            new.update(qe.UpdateOperation.upsert_points(points))
            copied += len(points)
        if offset is None:
            return copied


def disk_bytes(path: Path) -> int:
    """Returns the disk space of the files under a directory; many are preallocated and sparse."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


_SHARD: Final = ".shard"


class ShardDirectory:
    """The files of shards that are not open. Its owner has the lock of the directory until `release`."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> "ShardDirectory":
        """Creates the directory if absent, locks it, and completes what a crash has interrupted. Raises IndexLocked."""
        path.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock.acquire(path)
        recover(path, _SHARD)
        return cls(path, lock)

    def path_of(self, collection: str) -> Path:
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
