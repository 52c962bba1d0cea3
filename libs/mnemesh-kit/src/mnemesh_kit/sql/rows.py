"""Rows of a table as dataclasses whose fields have the names of its columns."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec
import sqlalchemy as sa

T = TypeVar("T")
_AS_THEY_ARE = (str, int, float, bool, bytes, datetime)
_ENCODE = msgspec.json.Encoder().encode


class Rows(Generic[T]):
    """Converts between the rows of a table and a frozen dataclass.

    A field is stored in the column of its name, or in the one that `columns` names for it: an enumeration by its value,
    a tuple or a dataclass as JSON text. The fields of an `inline` dataclass have columns of their own. A field without
    a column is neither written nor read. At least two fields have one.

    Example:
        >>> BLOCKS = Rows(blocks, Block, inline=("provenance",), limit="char_limit")
        >>> conn.execute(blocks.insert(), BLOCKS.to_row(block, organization_id="org-1"))
        >>> BLOCKS.from_row(conn.execute(sa.select(blocks)).first())
        Block(…)
    """

    def __init__(self, table: sa.Table, cls: type[T], *, inline: Sequence[str] = (), **columns: str) -> None:
        hints = get_type_hints(cls)
        self._cls = cls
        self._inline = {name: Rows(table, hints[name]) for name in inline}
        named = {field.name: columns.get(field.name, field.name) for field in fields(cls)}  # type: ignore[arg-type]
        stored = {name: column for name, column in named.items() if column in table.c}
        self._conversions = {name: _conversion(hints[name]) for name in stored}
        self._columns = stored
        self._read = attrgetter(*stored.values())

    def to_row(self, value: T, **others: Any) -> dict[str, Any]:
        """Returns the columns of a value, and `others`, which have precedence."""
        row: dict[str, Any] = {}
        for name, column in self._columns.items():
            item, (encode, _) = getattr(value, name), self._conversions[name]
            row[column] = item if item is None or encode is None else encode(item)
        for name, rows in self._inline.items():
            row |= rows.to_row(getattr(value, name))
        return row | others

    def from_row(self, row: Any, **others: Any) -> T:
        """Returns the value of a row that has all its columns. `others` are fields, and have precedence."""
        for (name, (_, decode)), item in zip(self._conversions.items(), self._read(row), strict=True):
            others.setdefault(name, item if item is None or decode is None else decode(item))
        for name, rows in self._inline.items():
            others[name] = rows.from_row(row)
        return self._cls(**others)


def _conversion(hint: Any) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    """Returns how a value of a type is written and read; None as it is."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
    kind = kinds[0]
    if kind in _AS_THEY_ARE:
        return None, None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return attrgetter("value"), kind
    assert is_dataclass(kind) or get_args(kind), f"{kind} has no form in a column"  # noqa: S101 - when it is declared
    return (lambda value: _ENCODE(value).decode()), msgspec.json.Decoder(kind).decode
