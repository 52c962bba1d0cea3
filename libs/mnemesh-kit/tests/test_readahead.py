"""Read-ahead of SQLite files: the pages that it asks for are those of the rows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.readahead import RECENT_SECONDS, Readahead, read_ahead

PAGE = 4_096
LONG = 30_000
"""The size of the rows of the table `long`: each continues in seven pages."""
ROWS = 4_000

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no read-ahead")


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a table of short rows, whose keys have gaps, and one of long rows."""
    path = tmp_path_factory.mktemp("readahead") / "file.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {PAGE}; PRAGMA journal_mode = WAL;"
            "CREATE TABLE short (key INTEGER PRIMARY KEY, data BLOB);"
            "CREATE TABLE long (key INTEGER PRIMARY KEY, data BLOB);"
        )
        connection.executemany("INSERT INTO short VALUES (?, zeroblob(?))", ((7 * n, n % 900) for n in range(ROWS)))
        connection.executemany("INSERT INTO long VALUES (?, zeroblob(?))", ((n << 20, LONG) for n in range(300)))
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The pages that are in the kernel's cache, as far as read-ahead can tell."""
    pages: set[int] = set()

    def read(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if offset // PAGE + 1 not in pages:
            raise BlockingIOError
        (buffer,) = buffers
        buffer[:] = os.pread(descriptor, len(buffer), offset)
        return len(buffer)

    monkeypatch.setattr(os, "preadv", read)
    return pages


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, cached: set[int]) -> list[int]:
    """The pages that the kernel was asked for."""
    pages: list[int] = []

    def note(_descriptor: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        pages.extend(range(offset // PAGE + 1, (offset + length) // PAGE + 1))

    monkeypatch.setattr(os, "posix_fadvise", note)
    return pages


def keys_in(path: Path, pages: list[int]) -> set[int]:
    """Returns the keys of the rows of leaf pages, read from a copy of the file that has nothing else."""
    data = path.read_bytes()
    found = set()
    for page in pages:
        start = (page - 1) * PAGE
        if data[start] == 0x0D:
            count = int.from_bytes(data[start + 3 : start + 5], "big")
            for place in range(count):
                at = start + int.from_bytes(data[start + 8 + 2 * place : start + 10 + 2 * place], "big")
                found.add(_row_id(data, at))
    return found


def _row_id(data: bytes, at: int) -> int:
    while data[at] >= 0x80:
        at += 1
    number, at = 0, at + 1
    while True:
        number = number << 7 | data[at] & 0x7F
        if data[at] < 0x80:
            return number
        at += 1


def test_the_pages_of_the_rows(path: Path, connection: sqlite3.Connection, asked: list[int]) -> None:
    wanted = [7 * n for n in range(3, ROWS, 271)]
    Readahead(path).rows(connection, "short", wanted)
    assert set(wanted) <= keys_in(path, asked)
    assert len(asked) < 2 * len(wanted)  # some pages above them, and no others


def test_the_pages_in_which_long_rows_continue(path: Path, connection: sqlite3.Connection, asked: list[int]) -> None:
    Readahead(path).rows(connection, "long", [5 << 20], overflow=True)
    (first,) = (page for page in asked if 5 << 20 in keys_in(path, [page]))
    continued = [page for page in asked if not keys_in(path, [page])]
    assert first not in continued
    data, page = path.read_bytes(), min(continued[-7:])
    for _ in range(7):  # each page of overflow begins with the number of the next
        assert page in continued
        page = int.from_bytes(data[(page - 1) * PAGE : (page - 1) * PAGE + 4], "big")
    assert page == 0


def test_cached_pages_are_not_asked_for(
    path: Path, connection: sqlite3.Connection, asked: list[int], cached: set[int]
) -> None:
    clock, wanted = Clock(), [7 * n for n in range(3, ROWS, 271)]
    readahead = Readahead(path, clock)
    for table, keys in (("short", wanted), ("long", [5 << 20, 90 << 20])):
        cached.clear()
        clock.now += RECENT_SECONDS
        readahead.rows(connection, table, keys, overflow=table == "long")
        pages = set(asked)
        asked.clear()
        cached.update(range(1, path.stat().st_size // PAGE + 1))
        clock.now += RECENT_SECONDS
        readahead.rows(connection, table, keys, overflow=table == "long")
        assert asked == []
        (of_first, *_), of_last = (
            [page for page in pages if key in keys_in(path, [page])] for key in (keys[0], keys[-1])
        )
        for absent in (of_first, *of_last, max(pages)):
            cached.discard(absent)
            clock.now += RECENT_SECONDS
            readahead.rows(connection, table, keys, overflow=table == "long")
            assert set(asked) == pages
            cached.add(absent)
            asked.clear()


def test_rows_that_do_not_exist(path: Path, connection: sqlite3.Connection, asked: list[int]) -> None:
    readahead = Readahead(path)
    readahead.rows(connection, "short", [-5, 10, 7 * ROWS + 1])
    assert asked
    asked.clear()
    readahead.rows(connection, "short", [])
    readahead.rows(connection, "no_such_table", [1])
    assert asked == []


def test_a_second_read_soon_after_asks_for_nothing(
    path: Path, connection: sqlite3.Connection, asked: list[int]
) -> None:
    clock = Clock()
    readahead = Readahead(path, clock)
    readahead.rows(connection, "short", [7, 14])
    asked.clear()
    readahead.rows(connection, "short", [14, 7])
    assert asked == []
    clock.now = RECENT_SECONDS
    readahead.rows(connection, "short", [7, 14])
    assert asked


def test_inner_pages_are_read_once(
    path: Path, connection: sqlite3.Connection, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    readahead = Readahead(path, clock)
    readahead.rows(connection, "short", [7])
    read: list[int] = []
    pread = os.pread

    def noted(descriptor: int, length: int, offset: int) -> bytes:
        read.append(length)
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", noted)
    asked.clear()
    readahead.rows(connection, "short", [14])
    assert 14 in keys_in(path, asked)
    assert len(asked) == 1
    assert PAGE not in read
    clock.now = RECENT_SECONDS
    readahead.rows(connection, "short", [21])
    assert PAGE in read


def test_a_tree_that_has_grown(tmp_path: Path, asked: list[int]) -> None:
    path, clock = tmp_path / "file.db", Clock()
    readahead = Readahead(path, clock)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA page_size = {PAGE}; CREATE TABLE short (key INTEGER PRIMARY KEY, data BLOB);")
        for first, last in ((0, 3), (3, 300), (300, 100_000)):  # a leaf; one level above the leaves; two levels
            connection.executemany("INSERT INTO short VALUES (?, zeroblob(60))", ((n,) for n in range(first, last)))
            connection.commit()
            asked.clear()
            clock.now += RECENT_SECONDS
            readahead.rows(connection, "short", [last - 1])
            assert last - 1 in keys_in(path, asked)


def test_a_file_that_was_rewritten(tmp_path: Path, path: Path, asked: list[int]) -> None:
    moved = tmp_path / "file.db"
    moved.write_bytes(path.read_bytes())
    clock = Clock()
    readahead = Readahead(moved, clock)
    with closing(sqlite3.connect(moved)) as connection:
        readahead.rows(connection, "long", [1 << 20])
        connection.execute("DROP TABLE short")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        asked.clear()
        clock.now = RECENT_SECONDS
        readahead.rows(connection, "long", [1 << 20])
    assert 1 << 20 in keys_in(moved, asked)


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"\xff" * 40_000])
def test_a_file_of_something_else_is_ignored(
    tmp_path: Path, connection: sqlite3.Connection, asked: list[int], damage: bytes
) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(damage)
    readahead = Readahead(other)
    readahead.rows(connection, "short", [7], overflow=True)
    readahead.close()
    Readahead(tmp_path / "absent.db").rows(connection, "short", [7])


async def test_reads_of_a_database(tmp_path: Path, asked: list[int]) -> None:
    table = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.Text))
    url = f"sqlite:///{tmp_path / 'notes.db'}"
    database = Database.open(url)
    await database.write(table.create)
    await database.write(lambda conn: conn.execute(sa.insert(table), {"id": 1, "text": "a"}))
    await database.close()  # moves the log, which is not read ahead, to the file
    database = Database.open(url)
    try:
        await database.read(lambda conn: read_ahead(conn, table, [1]))
        assert asked
        asked.clear()
        await database.write(lambda conn: read_ahead(conn, table, [1]))  # writers read what they have just written
        assert asked == []
    finally:
        await database.close()
