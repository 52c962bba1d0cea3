"""Read-ahead for SQLite files: the kernel is asked for the pages of several rows at once.

SQLite reads one page after another, and waits for the disk each time. Pages that were asked for before are in the
kernel's cache, or on their way, when SQLite needs them. `table_pages` describes the format of the file.
"""

from __future__ import annotations

import bisect
import math
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast

import sqlalchemy as sa

Run = tuple[int, int]
"""The first and the last of successive numbers."""
_LEAF: Final = 0x0D
_INNER: Final = 0x05
_VARINT_BYTES: Final = 9
_CONTINUES: Final = 0x80
"""The bit of a byte of a variable-length integer that says that another byte follows."""


def runs(numbers: Iterable[int]) -> list[Run]:
    """Returns numbers as ascending runs of successive ones."""
    found: list[Run] = []
    for number in sorted(numbers):
        if found and number <= found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


class Page(NamedTuple):
    """A page of a table. An inner one has a child per cell, with the rows up to the cell's key, and a last child."""

    data: bytes
    start: int
    """The place of its header."""

    @property
    def is_leaf(self) -> bool:
        """True for a page with rows, false for one with children."""
        kind = self.data[self.start]
        if kind not in (_LEAF, _INNER):
            raise IndexError("the page is not a page of a table")
        return kind == _LEAF

    def cells(self) -> tuple[int, ...]:
        """Returns where its cells are, in the order of their keys."""
        (count,) = struct.unpack_from(">H", self.data, self.start + 3)
        return struct.unpack_from(f">{count}H", self.data, self.start + (8 if self.is_leaf else 12))

    def children_of(self, wanted: Sequence[Run]) -> dict[int, list[Run]]:
        """Returns the children of an inner page that have rows of these runs, with the runs of each."""
        found: dict[int, list[Run]] = {}
        if self.is_leaf:
            raise IndexError("a leaf has no children")
        cells = self.cells()
        for first, last in wanted:
            place = bisect.bisect_left(cells, first, key=self._key)
            end = place if first == last else bisect.bisect_left(cells, last, place, key=self._key)
            for cell in cells[place : end + 1]:
                found.setdefault(self._page_number(cell), []).append((first, last))
            if end == len(cells):
                found.setdefault(self._page_number(self.start + 8), []).append((first, last))
        return found

    def overflow_of(self, cell: int, local_bytes: Callable[[int], int]) -> tuple[int, int, int]:
        """Returns the row id of a leaf's cell, its first page of overflow or 0, and how many bytes continue there."""
        size, at = self.varint(cell)
        row_id, at = self.varint(at)
        local = local_bytes(size)
        return row_id, self._page_number(at + local) if local < size else 0, size - local

    def varint(self, at: int) -> tuple[int, int]:
        """Returns the integer of variable length at a place, and the place after it."""
        number, data = 0, self.data
        for place in range(at, at + _VARINT_BYTES):
            byte = data[place]
            number = number << 7 | byte & 0x7F
            if byte < _CONTINUES:
                return number, place + 1
        return number, at + _VARINT_BYTES

    def _key(self, cell: int) -> int:
        """Returns the key of an inner page's cell."""
        number = 0
        for byte in self.data[cell + 4 : cell + 4 + _VARINT_BYTES]:
            number = number << 7 | byte & 0x7F
            if byte < _CONTINUES:
                break
        return number

    def _page_number(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 4], "big")


_READAHEAD: Final = "mnemesh_readahead"
_FILE_HEADER: Final = 100
_MOST_LEVELS: Final = 20
RECENT_SECONDS: Final = 60.0
"""Rows that were asked for are not asked for again within this time. Inner pages of trees are read again after it."""
_MOST_KEPT_BYTES: Final = 4 << 20
"""The size of the inner pages that are kept."""
_MOST_ASKED: Final = 4_096
_HAS_READAHEAD: Final = hasattr(os, "posix_fadvise")
_CAN_TELL: Final = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")


def read_ahead(conn: sa.Connection, table: sa.Table, row_ids: Iterable[int], *, overflow: bool = False) -> None:
    """Asks for the pages of rows before they are read; see `Readahead.rows`. Has no effect on other engines."""
    readahead: Readahead | None = conn.info.get(_READAHEAD)
    if readahead is not None:
        driver = cast("sqlite3.Connection", conn.connection.driver_connection)
        readahead.rows(driver, table.name, row_ids, overflow=overflow)


class Readahead:
    """Asks the kernel to read pages of one file of SQLite.

    These are hints: the file is read without a transaction, and its log is not read at all, so a page may be the wrong
    one. Such a page is read for nothing, and nothing else changes. Systems without `posix_fadvise` ignore hints.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._asked: dict[tuple[str, int], float] = {}
        self._file: _File | None = None
        self._kept_until = -math.inf
        self._lock = threading.Lock()
        self._roots: dict[str, int] = {}
        self._cookie = b""

    def attach(self, conn: sa.Connection) -> None:
        """Lets `read_ahead` use this for a connection to the file."""
        conn.info[_READAHEAD] = self

    def rows(
        self, connection: sqlite3.Connection, table: str, row_ids: Iterable[int], *, overflow: bool = False
    ) -> None:
        """Asks for the pages of rows.

        Args:
            connection: a connection to the file, in a transaction.
            table: a table with row ids.
            row_ids: the rows, which need not exist.
            overflow: true to wait for these pages, and to ask for those in which long rows continue. They are expected
                one after another.
        """
        wanted = runs(row_ids)
        if not _HAS_READAHEAD or not wanted:
            return
        with self._lock:
            if self._was_asked(table, wanted[0][0]):
                return
            try:
                file = self._opened()
                root = self._root(connection, table, file)
                if file.seems_cached(root, wanted, overflow=overflow):
                    return
                leaves = file.leaves(root, wanted)
                file.ask(leaves)
                if overflow:
                    file.ask_overflow(leaves, wanted)
            except (OSError, IndexError, struct.error):
                # A page is not what was expected, because it was changed meanwhile. The next read looks again.
                self._kept_until = -math.inf

    def close(self) -> None:
        """Closes the file. Only after all connections to it: closing a file releases the locks that they have on it."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _was_asked(self, table: str, row_id: int) -> bool:
        """Returns whether rows that begin with this one were asked for recently, so that they are in the cache."""
        now, asked = self._now(), self._asked.pop((table, row_id), -math.inf)
        if len(self._asked) >= _MOST_ASKED:
            self._asked.clear()
        self._asked[table, row_id] = now
        return now - asked < RECENT_SECONDS

    def _opened(self) -> _File:
        if self._file is None:
            self._file = _File(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
        return self._file

    def _root(self, connection: sqlite3.Connection, table: str, file: _File) -> int:
        """Returns the root page of a table. It moves only with a change of the schema or a rewrite of the file."""
        cookie, now = file.schema_cookie(), self._now()
        if cookie != self._cookie or now >= self._kept_until:
            file.forget()
            self._kept_until = now + RECENT_SECONDS
        if cookie != self._cookie:
            rows = connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE type = 'table'").fetchall()
            self._roots, self._cookie = dict(rows), cookie
        return self._roots.get(table, 0)


def _some(wanted: Sequence[Run]) -> list[Run]:
    """Returns the first, a middle and the last of the rows of runs."""
    rows = (wanted[0][0], wanted[len(wanted) // 2][0], wanted[-1][1])
    return [(row, row) for row in dict.fromkeys(rows)]


class _File:
    """The pages of a file. Inner pages of trees are kept until `forget`, because most reads pass the same ones."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        header = os.pread(descriptor, _FILE_HEADER, 0)
        size = int.from_bytes(header[16:18], "big")
        self._page_bytes = 65_536 if size == 1 else size
        self._usable_bytes = self._page_bytes - header[20]
        self._inner: dict[int, Page] = {}
        self._heights: dict[int, int] = {}
        """The number of levels above the leaves of a tree, by its root. All its leaves are at the same level."""

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def forget(self) -> None:
        """Forgets the inner pages, which may have changed."""
        self._inner.clear()
        self._heights.clear()

    def schema_cookie(self) -> bytes:
        """Returns a number that changes with the schema, and when the file is rewritten."""
        return os.pread(self._descriptor, 4, 40)

    def ask(self, pages: Iterable[int]) -> None:
        """Asks for pages."""
        size = self._page_bytes
        for first, last in runs(pages):
            start, length = (first - 1) * size, (last - first + 1) * size
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_WILLNEED)

    def seems_cached(self, root: int, wanted: Sequence[Run], *, overflow: bool) -> bool:
        """Returns whether the pages of some of the rows are in the kernel's cache, so that nothing needs to be asked.

        Most pages of the rows of one read were read together before. If long rows are expected, all rows are looked at.
        """
        some = wanted if overflow else _some(wanted)
        level = [(root, list(some))]
        for height in range(_MOST_LEVELS):
            if height == self._heights.get(root) and not overflow:
                return all(self._is_cached(number) for number, _ in level)
            pages = [(self._read_cached(number), rows) for number, rows in level]
            known = [(page, rows) for page, rows in pages if page is not None]
            if len(known) < len(pages):
                return False
            if known[0][0].is_leaf:
                return not overflow or all(map(self._is_cached, self._ends_of_overflow(known)))
            level = [child for page, rows in known for child in page.children_of(rows).items()]
        return False

    def leaves(self, root: int, wanted: Sequence[Run]) -> list[int]:
        """Returns the leaf pages in which rows are. Reads the pages above them, and one of a new tree."""
        level = {root: list(wanted)}
        for height in range(_MOST_LEVELS):
            if root not in self._heights and self._read(next(iter(level))).is_leaf:
                self._heights[root] = height
            if height == self._heights.get(root):
                return list(level)
            self.ask(number for number in level if number not in self._inner)
            below: dict[int, list[Run]] = {}
            for page, rows in level.items():
                for child, of_child in self._read(page).children_of(rows).items():
                    below.setdefault(child, []).extend(of_child)
            level = below
        raise IndexError("the tree has no leaves")

    def ask_overflow(self, leaves: Iterable[int], wanted: Sequence[Run]) -> None:
        """Asks for the pages in which long rows of these leaves continue."""
        for number in leaves:
            for pages in self._overflow(self._read(number), wanted):
                self.ask(pages)

    def _overflow(self, leaf: Page, wanted: Sequence[Run]) -> Iterator[range]:
        """Yields the pages in which each of the long rows of a leaf is expected to continue."""
        for cell in leaf.cells() if leaf.is_leaf else ():
            row_id, first, size = leaf.overflow_of(cell, self._local_bytes)
            if first and any(start <= row_id <= end for start, end in wanted):
                yield range(first, first - (-size // (self._usable_bytes - 4)))

    def _ends_of_overflow(self, leaves: Iterable[tuple[Page, Sequence[Run]]]) -> Iterator[int]:
        for leaf, wanted in leaves:
            for pages in self._overflow(leaf, wanted):
                yield from (pages[0], pages[-1])

    def _read_cached(self, page: int) -> Page | None:
        """Returns a page that is kept or in the kernel's cache; None for another."""
        if page in self._inner:
            return self._inner[page]
        data = bytearray(self._page_bytes)
        return self._page(page, bytes(data)) if self._is_cached(page, data) else None

    def _is_cached(self, page: int, into: bytearray | None = None) -> bool:
        """Returns whether a page is in the kernel's cache; False if the system cannot tell."""
        if not _CAN_TELL or page <= 0:
            return False
        into = into or bytearray(1)
        try:
            return os.preadv(self._descriptor, [into], (page - 1) * self._page_bytes, os.RWF_NOWAIT) == len(into)
        except OSError:  # it is not, or the file system does not say
            return False

    def _read(self, page: int) -> Page:
        if page in self._inner:
            return self._inner[page]
        data = os.pread(self._descriptor, self._page_bytes, (page - 1) * self._page_bytes) if page > 0 else b""
        if len(data) < self._page_bytes:
            raise IndexError(f"the file has no page {page}")
        return self._page(page, data)

    def _page(self, number: int, data: bytes) -> Page:
        """Returns a page that was read. An inner one is kept."""
        page = Page(data, _FILE_HEADER if number == 1 else 0)
        if not page.is_leaf:
            if len(self._inner) >= _MOST_KEPT_BYTES // self._page_bytes:
                self._inner.clear()
            self._inner[number] = page
        return page

    def _local_bytes(self, size: int) -> int:
        """Returns how much of a row of this size is in its leaf page."""
        most = self._usable_bytes - 35
        if size <= most:
            return size
        least = (self._usable_bytes - 12) * 32 // 255 - 23
        local = least + (size - least) % (self._usable_bytes - 4)
        return local if local <= most else least
