"""Files with a JSON object on each line."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mnemesh_kit.errors import InvalidArgument

Line = dict[str, Any]


def read_lines(path: Path, *, skip_incomplete: bool = False) -> Iterator[tuple[int, Line]]:
    """Yields the number and the object of each line that is not empty; nothing if there is no file.

    Args:
        path: the file.
        skip_incomplete: whether a last line without a line break is skipped, which a crash leaves behind in a file that
            grows.

    Raises:
        InvalidArgument: the file cannot be read, or a line is not a JSON object.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}.", field=path.name) from error
    if skip_incomplete:
        content = content[: content.rfind(b"\n") + 1]
    for number, text in enumerate(content.split(b"\n"), start=1):
        if not text.strip():
            continue
        yield number, parse_line(path, number, text)


def parse_line(path: Path, number: int, text: bytes) -> Line:
    """Returns the object of a line. Raises InvalidArgument if it is none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise line_error(path, number, "not JSON.") from error
    if not isinstance(line, dict):
        raise line_error(path, number, "not a JSON object.")
    return line


def line_error(path: Path, number: int, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{path}, line {number}: {problem}", field=path.name, line=str(number))


def encode_json(value: Any) -> str:
    """Returns compact JSON with non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def sync_directory(directory: Path) -> None:
    """Flushes the entries of a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
