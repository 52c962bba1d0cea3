"""The pages of tables in a file of SQLite.

The documentation of SQLite describes them ("Database File Format"): tables are B-trees whose inner pages have the keys
of their children.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

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
