"""The files of an agent beside its trace files: messages of the contracts as JSON, with the names of their fields."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from mnemesh_kit.errors import InvalidArgument

M = TypeVar("M", bound=Message)
Line = dict[str, Any]

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
    directory.mkdir(parents=True, exist_ok=True)
    new, count = directory / f".{name}.new", 0
    with new.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / name)
    return count


def read(directory: Path, name: str) -> list[Line]:
    """Returns the lines of a file; an empty list if there is no file.

    Raises:
        InvalidArgument: a line is not a JSON object.
    """
    path = directory / name
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"{name}, line {number}: not JSON.", field=name, line=str(number)) from error
        if not isinstance(line, dict):
            raise InvalidArgument(f"{name}, line {number}: not a JSON object.", field=name, line=str(number))
        lines.append(line)
    return lines
