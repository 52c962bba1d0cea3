"""How every command prints what it found: a table or fields for people, or JSON with the names of the contract."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, Final

import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh_cli.display.table import Column, is_wide, local_time_text, table_lines
from mnemesh_cli.display.terminal import notice, output
from rich.text import Text

_LONGEST_LINE: Final = 100
_INDENT: Final = "  "
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
Record = Message | Mapping[str, Any]


async def print_list(
    rows: AsyncIterator[Any] | Iterable[Any],
    columns: Sequence[Column],
    *,
    as_json: bool,
    empty: str,
    limit: int | None = None,
) -> None:
    """Prints rows as a table, or as one JSON object per line while they are read.

    Args:
        rows: the rows.
        columns: the columns of a table.
        as_json: whether to print JSON.
        empty: what is said if there are no rows.
        limit: the largest number of rows, which is said if there are so many.
    """
    collected: list[Any] = []
    async for row in _each(rows):
        if as_json:
            print_json(row)
        collected.append(row)
    if as_json:
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


def print_record(record: Record, *, as_json: bool) -> None:
    """Prints one record: its fields that have a value, one per line, or JSON."""
    if as_json:
        print_json(record)
        return
    fields = _readable(record) if isinstance(record, Message) else record
    for line in _field_lines(fields, ""):
        output().print(Text(line), soft_wrap=True)


def print_done(text: str, record: Record, *, as_json: bool, **others: Any) -> None:
    """Prints what a command did: the text, or the record as JSON, with `others` as further fields."""
    if as_json:
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
