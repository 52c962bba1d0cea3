"""Rewrites a shard from its live points, because the engine keeps deleted ones in its segments and its log.

The steps are such that whatever dies between two of them, the next start finds one whole shard: the old one until the
rewritten one is complete and has its name, `….rewritten`; that one from there on.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import qdrant_edge as qe

BUILDING = ".building"
DROPPED = ".dropped"
REWRITTEN = ".rewritten"
PAGE = 500


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewriting did; sizes are what the files take on the disk."""

    collection: str
    points: int
    bytes_before: int
    bytes_after: int


def recover(directory: Path, suffix: str) -> None:
    """Finish or undo what a death left half done, in a directory of shards whose names end so."""
    for rewritten in directory.glob(f"*{suffix}{REWRITTEN}"):
        path = rewritten.with_name(rewritten.name.removesuffix(REWRITTEN))
        if path.exists():
            shutil.rmtree(rewritten)  # the swap had not begun, and the old one may have been written since
        else:
            rewritten.rename(path)
    for ending in (BUILDING, DROPPED):
        for leaving in directory.glob(f"*{suffix}{ending}"):
            shutil.rmtree(leaving)


def rewrite(path: Path, collection: str, config: qe.EdgeConfig) -> Rewritten:
    """Put a copy of the live points of a shard that is not open in its place."""
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
    leaving = path.with_name(path.name + DROPPED)
    building.rename(rewritten)
    path.rename(leaving)
    rewritten.rename(path)
    shutil.rmtree(leaving)
    return Rewritten(collection, points, before, disk_bytes(path))


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
    """What the files under a directory take; many are preallocated and hardly filled."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
