"""Citations in the texts of an agent: "[folder/file.pdf:12-15]"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_CITATIONS: Final = 1_000
MAX_QUOTE_CHARACTERS: Final = 2_000
_MAX_NAME: Final = 512
"""The longest name of a file with its folder."""
_LINES: Final = re.compile(r":(\d{1,9})(?:-(\d{1,9}))?\]")


@dataclass(frozen=True, slots=True)
class CitedLines:
    """A citation as it is written."""

    start: int
    """The position of its first character in the text, in code points."""
    end: int
    """The position after its last character."""
    file_name: str
    start_line: int
    end_line: int
    file_id: str | None = None
    """None if the text names no file of the agent."""


def citations(text: str, file_ids: Mapping[str, str]) -> Iterator[CitedLines]:
    """Yields the citations of a text in its order.

    The name is the longest one of a file of the agent before the lines, because names may contain brackets. A text in
    brackets that names no file counts only if it looks like the name of a file, with a dot or a slash.

    Args:
        text: the text.
        file_ids: the ids of the agent's files by the names under which they may be cited.
    """
    end = 0
    for lines in _LINES.finditer(text):
        found = _name_before(text, end, lines.start(), file_ids)
        if found is None:
            continue
        start, name = found
        end = lines.end()
        first = int(lines[1])
        yield CitedLines(start, end, name, first, int(lines[2] or first), file_ids.get(name))


def _name_before(text: str, lower: int, upper: int, file_ids: Mapping[str, str]) -> tuple[int, str] | None:
    """Returns the position of the bracket before a name that ends at `upper`, and the name."""
    lower = max(lower, upper - _MAX_NAME - 1, text.rfind("\n", lower, upper) + 1)
    nearest: tuple[int, str] | None = None
    known: tuple[int, str] | None = None
    position = text.rfind("[", lower, upper)
    while position >= 0:
        name = text[position + 1 : upper]
        if name in file_ids:
            known = position, name
        if nearest is None:
            nearest = position, name
        position = text.rfind("[", lower, position)
    if known is not None:
        return known
    return nearest if nearest is not None and _looks_like_a_file(nearest[1]) else None


def _looks_like_a_file(name: str) -> bool:
    return ("." in name or "/" in name) and bool(name.strip(" ./"))


def quoted(lines: list[str]) -> str:
    """Returns the cited lines as a quote."""
    text = "\n".join(lines)
    return text if len(text) <= MAX_QUOTE_CHARACTERS else f"{text[: MAX_QUOTE_CHARACTERS - 1]}…"
