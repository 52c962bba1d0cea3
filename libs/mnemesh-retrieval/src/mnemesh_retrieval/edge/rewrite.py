"""Rewrites a shard from its live points, because the engine keeps deleted points in its segments and its log.

After a crash at any step, the next start finds one complete shard: the old one until the new one is complete and named
`….rewritten`, and the new one from then on. A new collection's shard is incomplete while a file `….creating` exists.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import qdrant_edge as qe

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
