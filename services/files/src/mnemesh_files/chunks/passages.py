"""Divides a document into passages: at definitions in code, at headings and paragraphs in prose.

The boundaries depend on the text around them and not on its position, so a change of the document changes the passages
near it and leaves the others equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from zlib import crc32

from mnemesh_files.chunks.units import Boundary, Unit, units_of
from mnemesh_files.parsers.document import ParsedDocument

_BYTES_PER_TOKEN: Final = 4
_MAX_CHUNK_SIZE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document, for search."""

    text: str
    """Lines of the document, joined with line feeds; part of a line if one line is larger than a passage."""
    start_line: int
    """The first line, from 1."""
    end_line: int
    """The last line, inclusive."""
    page: int | None
    """The page of the first line, from 1. None for a document without pages."""

    @property
    def text_hash(self) -> str:
        """The SHA-256 of the text, in lower-case hexadecimal. Passages with equal hashes need one embedding."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def approximate_tokens(text: str) -> int:
    """Returns about how many tokens a text has: one for four bytes of UTF-8."""
    size = len(text) if text.isascii() else len(text.encode())
    return (size + _BYTES_PER_TOKEN - 1) // _BYTES_PER_TOKEN


def passages_of(
    document: ParsedDocument, chunk_size: int, count_tokens: Callable[[str], int] = approximate_tokens
) -> list[Passage]:
    """Returns the passages of a document, in order. They contain every line that is not blank, once.

    Deterministic: equal documents have equal passages.

    Args:
        document: The document.
        chunk_size: The largest number of tokens of a passage.
        count_tokens: Counts the tokens of a line or sentence; never more than the bytes of its UTF-8.

    Raises:
        ValueError: `chunk_size` is not positive.
    """
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1.")
    units = units_of(document, min(chunk_size, _MAX_CHUNK_SIZE), count_tokens)
    passages: list[Passage] = []
    start = 0
    while start < len(units):
        end = _end(units, start, chunk_size)
        if (passage := _passage(units[start:end], document)) is not None:
            passages.append(passage)
        start = end
    return passages


def _end(units: Sequence[Unit], start: int, chunk_size: int) -> int:
    """Returns the index after the last unit of the passage that begins at `start`.

    Of the boundaries between a part of `chunk_size` and all of it, the strongest is chosen, and of equally strong ones
    that with the smallest hash: another beginning leads to the same boundary.
    """
    tokens = 0
    best, best_key = start + 1, (0, 0)
    for index in range(start, len(units)):
        unit = units[index]
        if index > start:
            if tokens >= chunk_size * _LEAST_SHARE[unit.boundary]:
                key = (int(unit.boundary), -crc32(unit.text.encode()))
                if best_key == (0, 0) or key >= best_key:  # of equal lines the last, for passages that are full
                    best, best_key = index, key
            if tokens + unit.tokens > chunk_size:
                return best if best_key != (0, 0) else index
        tokens += unit.tokens
    return len(units)


# How full a passage must be before it ends at a boundary.
_LEAST_SHARE: Final = {
    Boundary.SECTION: 0.25,
    Boundary.PARAGRAPH: 0.5,
    Boundary.LINE_AFTER_SENTENCE: 0.5,
    Boundary.LINE: 0.5,
    Boundary.SENTENCE: 0.5,
}


def _passage(units: Sequence[Unit], document: ParsedDocument) -> Passage | None:
    """Returns the passage of these units without the blank lines at its ends; None if there is nothing else."""
    first = next((index for index, unit in enumerate(units) if not unit.is_blank), None)
    if first is None:
        return None
    last = max(index for index, unit in enumerate(units) if not unit.is_blank)
    kept = units[first : last + 1]
    parts = [kept[0].text]
    for before, unit in pairwise(kept):
        parts.append(unit.text if unit.line == before.line else f"\n{unit.text}")
    line = kept[0].line
    return Passage("".join(parts), line, kept[-1].line, document.page_of(line))
