"""The files of an agent beside its trace files: messages of the contracts as JSON, with the names of their fields."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from mnemesh_cli.json_lines import Line, encode_json, read_lines, sync_directory
from mnemesh_kit.errors import InvalidArgument

M = TypeVar("M", bound=Message)

SETTINGS: Final = "agent.json"
BLOCKS: Final = "blocks.jsonl"
TOOLS: Final = "tools.jsonl"
CONVERSATIONS: Final = "conversations.jsonl"
ARCHIVES: Final = "archives.jsonl"
PASSAGES: Final = "passages.jsonl"
NAMES: Final = (SETTINGS, BLOCKS, TOOLS, CONVERSATIONS, ARCHIVES, PASSAGES)


def to_line(message: Message) -> Line:
    """Returns a message as a JSON object."""
    return dict(MessageToDict(message, preserving_proto_field_name=True))


def from_line(line: Mapping[str, Any], message: M, name: str) -> M:
    """Returns the message of a JSON object. Unknown keys are ignored.

    Raises:
        InvalidArgument: a value does not fit its field.
    """
    try:
        return ParseDict(dict(line), message, ignore_unknown_fields=True)
    except ParseError as error:
        raise InvalidArgument(f"{name}: {error}", field=name) from error


def write(directory: Path, name: str, lines: Iterable[Line]) -> int:
    """Replaces a file. A crash leaves the old one or the new one. Returns the number of lines."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    new, count = directory / f".{name}.new", 0
    with new.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(f"{encode_json(line)}\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / name)
    sync_directory(directory)
    return count


def read(directory: Path, name: str) -> list[Line]:
    """Returns the lines of a file; an empty list if there is no file.

    Raises:
        InvalidArgument: the file cannot be read, or a line is not a JSON object.
    """
    return [line for _, line in read_lines(directory / name)]
