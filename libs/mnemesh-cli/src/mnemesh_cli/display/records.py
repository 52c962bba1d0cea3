"""Records as tables, as JSON, and as lists of fields."""

import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh_cli.display.terminal import is_json, is_wide, notice, output
from rich.cells import cell_len, set_cell_size
from rich.text import Text

_GAP: Final = 2
_NARROWEST: Final = 6
_LEAST_HEX: Final = 8
"""Digits of a short id. Of a million ids, two begin with the same eight digits in one case of nine thousand each."""
_LEAST_OTHER: Final = 14
"""Characters of a short id of providers, such as those of tool calls."""
_RELATIVE: Final = timedelta(days=7)

_LONGEST_LINE: Final = 100
_INDENT: Final = "  "
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
Record = Message | Mapping[str, Any]


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


async def print_list(
    rows: AsyncIterator[Any] | Iterable[Any], columns: Sequence[Column], *, empty: str, limit: int | None = None
) -> None:
    """Prints rows as a table, or as one JSON object per line while they are read.

    Args:
        rows: the rows.
        columns: the columns of a table.
        empty: what is said if there are no rows.
        limit: the largest number of rows, which is said if there are so many.
    """
    collected: list[Any] = []
    async for row in _each(rows):
        if is_json.get():
            print_json(row)
        collected.append(row)
    if is_json.get():
        return
    if not collected:
        notice(empty)
        return
    console = output()
    width = console.width if console.is_terminal and not is_wide.get() else None
    for number, line in enumerate(table_lines(columns, collected, width)):
        console.print(Text(line, style="" if number else "bold"), soft_wrap=True)
    if len(collected) == limit:
        notice(f"the list ends after {limit} rows; --limit shows more")


def count_text(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 tool`, `2 tools`. The plural of the noun must end with s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Prints the fields that have a value, one per line, as `print_record` does."""
    for label, value in fields:
        if value:
            for line in _text_lines(f"{label}:", value, ""):
                output().print(Text(line), soft_wrap=True)


def print_record(record: Record) -> None:
    """Prints one record: its fields that have a value, one per line, or JSON."""
    if is_json.get():
        print_json(record)
        return
    fields = _readable(record) if isinstance(record, Message) else record
    for line in _field_lines(fields, ""):
        output().print(Text(line), soft_wrap=True)


def print_done(text: str, record: Record, **others: Any) -> None:
    """Prints what a command did: the text, or the record as JSON, with `others` as further fields."""
    if is_json.get():
        print_json(record, **others)
    else:
        output().print(Text(text), soft_wrap=True)


def print_json(record: Record, **others: Any) -> None:
    """Prints a record as one line of JSON. `others` are further fields, before its own."""
    typer.echo(json_line(record, **others))


def json_line(record: Record, **others: Any) -> str:
    """Returns a record as one line of JSON. `others` are further fields, before its own."""
    return json.dumps({**others, **as_dict(record)}, ensure_ascii=False)


def as_dict(record: Record) -> dict[str, Any]:
    """Returns a record with the names of its fields in the contract."""
    if isinstance(record, Message):
        return MessageToDict(record, preserving_proto_field_name=True)
    return dict(record)


def _readable(message: Message) -> dict[str, Any]:
    """Returns the fields of a message that have a value: enums as words, times as local ones, durations in seconds."""
    return {
        field.name: dict(value)
        if field.message_type is not None and field.message_type.GetOptions().map_entry
        else [_readable_value(field, each) for each in value]
        if field.is_repeated
        else _readable_value(field, value)
        for field, value in message.ListFields()
    }


def _readable_value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return local_time_text(value.ToDatetime(UTC))
    if isinstance(value, Duration):
        return f"{value.ToTimedelta().total_seconds():g} s"
    if isinstance(value, Message):
        return _readable(value)
    if field.enum_type is not None:
        prefix = f"{_WORD_START.sub('_', field.enum_type.name).upper()}_"
        number = field.enum_type.values_by_number.get(value)
        return str(value) if number is None else number.name.removeprefix(prefix).lower().replace("_", " ")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value


async def _each(rows: AsyncIterator[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    if isinstance(rows, AsyncIterator):
        async for row in rows:
            yield row
        return
    for row in rows:
        yield row


def _field_lines(fields: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in fields.items():
        label = f"{indent}{name.replace('_', ' ')}:"
        if isinstance(value, Mapping):
            yield label
            yield from _field_lines(value, indent + _INDENT)
        elif isinstance(value, list):
            yield from _list_lines(label, value, indent)
        else:
            yield from _text_lines(label, str(value), indent)


def _list_lines(label: str, values: list[Any], indent: str) -> Iterator[str]:
    if not any(isinstance(value, Mapping | list) for value in values):
        yield f"{label} {', '.join(map(str, values))}"
        return
    yield label
    for value in values:
        lines = list(_field_lines(value, "")) if isinstance(value, Mapping) else [str(value)]
        yield from (f"{indent}{'- ' if number == 0 else _INDENT}{line}" for number, line in enumerate(lines))


def _text_lines(label: str, text: str, indent: str) -> Iterator[str]:
    if "\n" not in text and len(text) <= _LONGEST_LINE:
        yield f"{label} {text}"
        return
    yield label
    yield from (f"{indent}{_INDENT}{line}" for line in text.splitlines())
