"""The text of a window as the model reads it: a header, then lines with their numbers in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final

from mnemesh_files.model.windows import Window, page_of

TRUNCATED: Final = "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."

_SENTENCE_END: Final = re.compile(r"""(?:[.!?…]["'”’»)\]]*\s+(?=[^\sa-z])|[。！？]["'”’」』）]*\s*(?=\S))""")


class ViewStyle(StrEnum):
    """How a view shows the lines of a file. Every row has the number of its line, and no line is left out."""

    CODE = "code"
    """Lines with their indentation."""
    LINES = "lines"
    """Lines without the white space around them."""
    SENTENCES = "sentences"
    """One row per sentence. The sentences of a line have its number."""


@dataclass(frozen=True, slots=True)
class RenderedView:
    """The text of a window."""

    text: str
    truncated: bool = False
    """The window has more text than the limit allows."""


def header(window: Window, total_lines: int, page_starts: Sequence[int] = ()) -> str:
    """Returns the first line of a view: its range, and the pages of a file that has some."""
    last = window.last(total_lines)
    if window == Window():
        shown = "file start"
    elif window.end_line is None:
        shown = f"lines {window.first} to end"
    else:
        shown = f"lines {window.first} to {last}"
    pages = ""
    if page_starts and total_lines:
        first_page, last_page = page_of(window.first, page_starts), page_of(last, page_starts)
        pages = f", page {first_page}" if first_page == last_page else f", pages {first_page} to {last_page}"
    return f"[Viewing {shown} (out of {total_lines} lines){pages}]"


def rows(lines: Iterable[str], first: int, style: ViewStyle) -> Iterator[str]:
    """Yields the rows of a view, each with the number of its line.

    Args:
        lines: the lines of the window.
        first: the number of the first one.
        style: how lines are shown.
    """
    for number, line in enumerate(lines, first):
        match style:
            case ViewStyle.CODE:
                yield f"{number}: {line.rstrip()}".rstrip()
            case ViewStyle.LINES:
                yield f"{number}: {line.strip()}".rstrip()
            case ViewStyle.SENTENCES:
                for sentence in sentences(line):
                    yield f"{number}: {sentence}".rstrip()


def sentences(line: str) -> Iterator[str]:
    """Yields the sentences of a line, at least one. White space before the first stays: it may be indentation."""
    start = 0
    for end in _SENTENCE_END.finditer(line):
        yield line[start : end.end()].rstrip()
        start = end.end()
    yield line[start:].rstrip()


def rendered(
    lines: Iterable[str],
    window: Window,
    total_lines: int,
    style: ViewStyle,
    limit: int,
    page_starts: Sequence[int] = (),
) -> RenderedView:
    """Returns the text of a window, at most `limit` characters.

    Args:
        lines: the lines of the window, or as many of them as exceed the limit.
        window: the window.
        total_lines: the number of lines of the file.
        style: how lines are shown.
        limit: the number of characters. A longer text ends at a row, with a note.
        page_starts: the first line of each page.
    """
    shown: list[str] = []
    size = -1
    for row in chain([header(window, total_lines, page_starts)], rows(lines, window.first, style)):
        shown.append(row)
        size += len(row) + 1
        if size > limit:
            return RenderedView(_truncated(shown, limit), truncated=True)
    return RenderedView("\n".join(shown))


def _truncated(shown: Sequence[str], limit: int) -> str:
    """Returns the first rows that fit with the note, or else a part of the first line."""
    space = limit - len(TRUNCATED) - 1
    text = "\n".join(shown)[: max(space, 0)]
    if space <= len(shown[0]):
        return "\n".join(shown)[:limit] if space < 0 else f"{text}\n{TRUNCATED}"
    complete = text.rpartition("\n")[0]
    # If only the header is complete, the first row is cut.
    return f"{complete if chr(10) in complete else text}\n{TRUNCATED}"
