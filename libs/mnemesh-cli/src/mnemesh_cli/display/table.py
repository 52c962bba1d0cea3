"""Tables that fit the terminal: one line per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

_GAP: Final = 2
_NARROWEST: Final = 6


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    value: Callable[[Any], str]
    """Returns the text of a row."""
    flexible: bool = False
    """Whether the text is shortened if the table is wider than the terminal."""
    right: bool = False
    """Whether the text is aligned to the right, as numbers are."""


def table_lines(columns: Sequence[Column], rows: Sequence[Any], width: int | None) -> list[str]:
    """Returns the title and the rows as lines of at most `width` cells; of any length if it is None.

    Only flexible columns are shortened, the widest first, down to six cells.
    """
    cells = [[column.title for column in columns]]
    cells += [[" ".join(column.value(row).split()) for column in columns] for row in rows]
    widths = [max(cell_len(line[index]) for line in cells) for index in range(len(columns))]
    while width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
        flexible = [index for index, column in enumerate(columns) if column.flexible and widths[index] > _NARROWEST]
        if not flexible:
            break
        widths[max(flexible, key=lambda index: widths[index])] -= 1
    return [_line(columns, line, widths) for line in cells]


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [_fitted(cell, width, column.right) for column, cell, width in zip(columns, cells, widths, strict=True)]
    return (" " * _GAP).join(parts).rstrip()


def _fitted(text: str, width: int, right: bool) -> str:
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1).rstrip()}…"
    size = cell_len(text)
    return " " * (width - size) + text if right else text + " " * (width - size)
