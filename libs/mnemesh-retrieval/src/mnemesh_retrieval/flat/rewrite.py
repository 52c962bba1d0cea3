"""The rewrite of a FlatIndex's file."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from mnemesh_retrieval.damaged import discard
from mnemesh_retrieval.flat import schema


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """The result of a rewrite. Sizes are those of the file and its log."""

    points: dict[str, int]
    """The number of points of each collection."""
    bytes_before: int
    bytes_after: int


def rewritten(conn: sqlite3.Connection, directory: Path) -> RewriteReport:
    """Rewrites the file, empties its log, and deletes damaged files that were moved aside. See FlatIndex.rewrite."""
    before = _size(directory)
    discard(directory)
    # VACUUM writes to the log first, so the log is emptied after it, too.
    for command in ("wal_checkpoint(TRUNCATE)", None, "wal_checkpoint(TRUNCATE)"):
        conn.execute(f"PRAGMA {command}" if command else "VACUUM").fetchall()
    points = conn.execute(
        "SELECT name, (SELECT count(*) FROM points p WHERE p.collection = c.collection) FROM collections c"
    ).fetchall()
    return RewriteReport(dict(points), before, _size(directory))


def _size(directory: Path) -> int:
    return sum(part.stat().st_size for part in directory.glob(f"{schema.NAME}*"))
