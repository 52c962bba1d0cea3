"""Tables that fit the terminal: one line per row, with short ids and relative times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

_GAP: Final = 2
_NARROWEST: Final = 6
_LEAST_HEX: Final = 8
"""Digits of a short id. Of a million ids, two begin with the same eight digits in one case of nine thousand each."""
_LEAST_OTHER: Final = 14
"""Characters of a short id of providers, such as those of tool calls."""
_RELATIVE: Final = timedelta(days=7)

is_wide: ContextVar[bool] = ContextVar("is_wide", default=False)
"""Whether --wide is on the line: nothing is shortened."""


class Kind(StrEnum):
    """What a column contains."""

    TEXT = "text"
    ID = "id"
    """Whole ids. A table shows their shortest prefix that is unique in it; every command accepts it."""
    TIME = "time"
    """A `datetime`, or None. A table says how long ago it is."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    value: Callable[[Any], Any]
    """Returns the text of a row, or what the kind says."""
    flexible: bool = False
    """Whether the text is shortened if the table is wider than the terminal."""
    right: bool = False
    """Whether the text is aligned to the right, as numbers are."""
    kind: Kind = Kind.TEXT


def table_lines(
    columns: Sequence[Column], rows: Sequence[Any], width: int | None, now: datetime | None = None
) -> list[str]:
    """Returns the title and the rows as lines of at most `width` cells.

    Only flexible columns are shortened, the widest first, down to six cells. If `width` is None, nothing is: ids are
    whole, and times are local ones with their offset. Times are relative to `now`.
    """
    now = now or datetime.now(UTC)
    texts = [_texts(column, [column.value(row) for row in rows], width is None, now) for column in columns]
    cells = [[column.title for column in columns], *(list(row) for row in zip(*texts, strict=True))]
    widths = [max(cell_len(line[index]) for line in cells) for index in range(len(columns))]
    while width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
        flexible = [index for index, column in enumerate(columns) if column.flexible and widths[index] > _NARROWEST]
        if not flexible:
            break
        widths[max(flexible, key=lambda index: widths[index])] -= 1
    return [_line(columns, line, widths) for line in cells]


def short_ids(ids: Collection[str]) -> dict[str, str]:
    """Returns the shortest prefixes by which ids differ, with eight digits after the kind at least."""
    wanted = set(ids)
    return {each: _shortest(each, wanted - {each}) for each in wanted}


def time_text(time: datetime | None, now: datetime) -> str:
    """Returns how long ago a time is, such as "5 min ago"; the local date after a week; "" without a time."""
    if time is None:
        return ""
    age = now - time
    if age >= _RELATIVE or age <= -timedelta(minutes=1):
        return time.astimezone().strftime("%Y-%m-%d")
    seconds = max(0, int(age.total_seconds()))
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            count = seconds // size
            return f"{count} {unit.removesuffix('s') if count == 1 and unit == 'days' else unit} ago"
    return f"{seconds} s ago"


def local_time_text(time: datetime | None) -> str:
    """Returns a time of this machine's zone, with the offset of the zone; "" without a time."""
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _texts(column: Column, values: Sequence[Any], whole: bool, now: datetime) -> list[str]:
    if column.kind is Kind.TIME:
        return [local_time_text(value) if whole else time_text(value, now) for value in values]
    if column.kind is Kind.ID and not whole:
        short = short_ids([str(value) for value in values])
        return [short[str(value)] for value in values]
    return [" ".join(str(value).split()) for value in values]


def _shortest(id_: str, others: Collection[str]) -> str:
    kind, dash, digits = id_.partition("-")
    length = len(kind) + 1 + min(_LEAST_HEX, len(digits)) if dash else min(_LEAST_OTHER, len(id_))
    while any(other.startswith(id_[:length]) for other in others) and length < len(id_):
        length += 1
    return id_[:length]


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [_fitted(cell, width, column.right) for column, cell, width in zip(columns, cells, widths, strict=True)]
    return (" " * _GAP).join(parts).rstrip()


def _fitted(text: str, width: int, right: bool) -> str:
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1).rstrip()}…"
    size = cell_len(text)
    return " " * (width - size) + text if right else text + " " * (width - size)
