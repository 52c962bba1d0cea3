"""The SQLite file of the blocks: its tables, its connections, and what is read and written in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mnemesh_retrieval.flat.filters import Narrowing
from mnemesh_retrieval.flat.segment import Batch, Block, Entry

NAME: Final = "vectors.db"
MAKE: Final = 1
"""Counts up where the tables change: a file of another make is not read, but begun anew."""
_TABLES: Final = f"""
    CREATE TABLE collections (collection INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL);
    CREATE TABLE blocks (
        block INTEGER PRIMARY KEY, collection INTEGER NOT NULL, tenant TEXT NOT NULL,
        oldest INTEGER NOT NULL, newest INTEGER NOT NULL,
        labels TEXT NOT NULL, head BLOB NOT NULL, vectors BLOB NOT NULL
    );
    CREATE INDEX ix_blocks_tenant ON blocks (collection, tenant, block);
    CREATE TABLE block_labels (
        collection INTEGER NOT NULL, label TEXT NOT NULL, newest INTEGER NOT NULL, block INTEGER NOT NULL,
        oldest INTEGER NOT NULL, PRIMARY KEY (collection, label, newest, block)
    ) WITHOUT ROWID;
    CREATE TABLE points (
        collection INTEGER NOT NULL, id BLOB NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (collection, id)
    ) WITHOUT ROWID;
    PRAGMA user_version = {MAKE};
"""
_CACHE_KILOBYTES: Final = 4_096
_AT_ONCE: Final = 500
_TOLD_APART: Final = 1_000
"""Which of several labels is the rarest is looked at up to so many blocks."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A block as it is in the file."""

    number: int
    tenant: str
    block: Block


def opened(directory: Path) -> sqlite3.Connection:
    """The connection that writes, to a file that is made where there is none of this make."""
    path = directory / NAME
    connection = _connected(path)
    (make,) = connection.execute("PRAGMA user_version").fetchone()
    if make != MAKE:
        connection.close()
        for file in (path, path.with_name(f"{NAME}-wal"), path.with_name(f"{NAME}-shm")):
            file.unlink(missing_ok=True)
        connection = _connected(path)
        connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
    return connection


def reader(directory: Path) -> sqlite3.Connection:
    """A connection that only reads."""
    connection = _connected(directory / NAME)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    for pragma in (
        # Of a new file. A block is three of such pages, and five of the usual ones.
        "page_size = 8192",
        "journal_mode = WAL",
        # The death of the process takes nothing; a loss of power what no checkpoint has brought to the disk.
        "synchronous = NORMAL",
        "secure_delete = ON",
        f"cache_size = -{_CACHE_KILOBYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def numbers(conn: sqlite3.Connection, collection: int, where: Narrowing, most: int = -1) -> list[int]:
    """The blocks that can have a match, those with the newest points first; at most `most` unless it is -1."""
    if where.ids is not None:
        return holding(conn, collection, where.ids)
    if not where.labels:
        found = conn.execute("SELECT block FROM blocks WHERE collection = ? ORDER BY newest DESC", (collection,))
        return [number for (number,) in found][: most if most >= 0 else None]
    if not all(where.labels):
        return []
    labels = where.labels[0]
    if len(where.labels) > 1:
        labels = min(where.labels, key=lambda each: _blocks_with(conn, collection, each))
    marks = ", ".join("?" * len(labels))
    found = conn.execute(
        "SELECT block, max(newest) AS latest FROM block_labels"  # noqa: S608
        f" WHERE collection = ? AND label IN ({marks}) AND newest >= ? AND oldest < ?"
        " GROUP BY block ORDER BY latest DESC, block DESC LIMIT ?"
        if len(labels) > 1
        else "SELECT block, newest FROM block_labels"
        " WHERE collection = ? AND label = ? AND newest >= ? AND oldest < ? ORDER BY newest DESC, block DESC LIMIT ?",
        (collection, *labels, where.since, where.before, most),
    )
    return [number for number, _ in found]


def holding(conn: sqlite3.Connection, collection: int, ids: Iterable[bytes]) -> list[int]:
    """The blocks that these points are in."""
    return list(dict.fromkeys(_places(conn, collection, ids).values()))


def read(conn: sqlite3.Connection, number: int, dimension: int) -> Kept:
    """A block."""
    tenant, labels, head, vectors = conn.execute(
        "SELECT tenant, labels, head, vectors FROM blocks WHERE block = ?", (number,)
    ).fetchone()
    return Kept(number, tenant, Block.of_row(labels, head, vectors, dimension))


def read_all(conn: sqlite3.Connection, found: Sequence[int], dimension: int, *, vectors: bool = True) -> Batch:
    """Blocks, with their vectors or without, in any order."""
    column = "vectors" if vectors else "x''"
    marks = ", ".join("?" * len(found))
    rows = conn.execute(f"SELECT labels, head, {column} FROM blocks WHERE block IN ({marks})", found)  # noqa: S608
    return Batch.of_rows(rows.fetchall(), dimension)


def put(conn: sqlite3.Connection, collection: int, dimension: int, tenant: str, entries: Sequence[Entry]) -> None:
    """Adds points that are not there to the newest block of their tenant, and to new ones behind it."""
    last = conn.execute(
        "SELECT max(block) FROM blocks WHERE collection = ? AND tenant = ?", (collection, tenant)
    ).fetchone()[0]
    tail = read(conn, last, dimension) if last is not None else None
    left = list(entries)
    while left:
        old = tail.block if tail is not None else Block.empty(dimension)
        count = old.room(left)
        if count:
            number = _save(conn, collection, tail, tenant, old.grown(left[:count]))
            conn.executemany(
                "INSERT INTO points (collection, id, block) VALUES (?, ?, ?)",
                [(collection, entry.id, number) for entry in left[:count]],
            )
        left, tail = left[count:], None


def take_out(conn: sqlite3.Connection, collection: int, dimension: int, ids: Sequence[bytes]) -> None:
    """Takes out those of the points that are there."""
    by_block: dict[int, list[bytes]] = {}
    for id_, number in _places(conn, collection, ids).items():
        by_block.setdefault(number, []).append(id_)
    for number, gone in by_block.items():
        kept = read(conn, number, dimension)
        shrink(conn, collection, kept, kept.block.without(gone), gone)


def shrink(conn: sqlite3.Connection, collection: int, kept: Kept, rest: Block, gone: Sequence[bytes]) -> None:
    """Leaves the rest of a block, which may be nothing."""
    _save(conn, collection, kept, kept.tenant, rest)
    conn.executemany("DELETE FROM points WHERE collection = ? AND id = ?", [(collection, id_) for id_ in gone])


def drop(conn: sqlite3.Connection, collection: int) -> None:
    """Removes a collection."""
    for table in ("points", "block_labels", "blocks", "collections"):
        conn.execute(f"DELETE FROM {table} WHERE collection = ?", (collection,))  # noqa: S608


def _save(conn: sqlite3.Connection, collection: int, old: Kept | None, tenant: str, block: Block) -> int:
    """Writes a block in place of what it was, or as a new one; its number."""
    number = old.number if old is not None else None
    if old is not None and (_stamp(old.block), old.block.labels) != (_stamp(block), block.labels):
        stale = [(collection, label, old.block.newest, old.number) for label in old.block.labels]
        conn.executemany(
            "DELETE FROM block_labels WHERE collection = ? AND label = ? AND newest = ? AND block = ?", stale
        )
    if not len(block):
        conn.execute("DELETE FROM blocks WHERE block = ?", (number,))
        return 0
    values = (block.oldest, block.newest, *block.row())
    if old is None:
        number = conn.execute(
            "INSERT INTO blocks (collection, tenant, oldest, newest, labels, head, vectors)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (collection, tenant, *values),
        ).lastrowid
    else:
        conn.execute(
            "UPDATE blocks SET oldest = ?, newest = ?, labels = ?, head = ?, vectors = ? WHERE block = ?",
            (*values, number),
        )
    assert number is not None  # noqa: S101 - an insert has a row
    if old is None or (_stamp(old.block), old.block.labels) != (_stamp(block), block.labels):
        conn.executemany(
            "INSERT INTO block_labels (collection, label, newest, block, oldest) VALUES (?, ?, ?, ?, ?)",
            [(collection, label, block.newest, number, block.oldest) for label in block.labels],
        )
    return number


def _stamp(block: Block) -> tuple[int, int] | None:
    return (block.oldest, block.newest) if len(block) else None


def _blocks_with(conn: sqlite3.Connection, collection: int, labels: Sequence[str]) -> int:
    marks = ", ".join("?" * len(labels))
    found = conn.execute(
        "SELECT count(*) FROM (SELECT 1 FROM block_labels"  # noqa: S608
        f" WHERE collection = ? AND label IN ({marks}) LIMIT {_TOLD_APART})",
        (collection, *labels),
    )
    return int(found.fetchone()[0])


def _places(conn: sqlite3.Connection, collection: int, ids: Iterable[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _AT_ONCE):
        some = wanted[start : start + _AT_ONCE]
        marks = ", ".join("?" * len(some))
        found.update(
            conn.execute(f"SELECT id, block FROM points WHERE collection = ? AND id IN ({marks})", (collection, *some))  # noqa: S608
        )
    return found
