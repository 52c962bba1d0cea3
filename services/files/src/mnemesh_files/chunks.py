"""The passages of a text for search, at lines, sentences and definitions."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final
from zlib import crc32

from mnemesh_files.parsers.document import DocumentKind, ParsedDocument

_BYTES_PER_TOKEN: Final = 4
_MAX_CHUNK_SIZE: Final = 100_000


class Boundary(IntEnum):
    """How well a passage begins before a unit. Higher is better."""

    SENTENCE = 1
    LINE = 2
    LINE_AFTER_SENTENCE = 3
    """A line of prose after one that ends a sentence."""
    PARAGRAPH = 4
    SECTION = 5
    """A heading, a definition or a page."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A line, or a part of one."""

    text: str
    line: int
    """The number of its line, from 1."""
    tokens: int
    boundary: Boundary
    is_blank: bool


_HEADING: Final = re.compile(r"#{1,6}\s")
_SENTENCE: Final = re.compile(r""".+?(?:[.!?…]["'”’»)\]]*\s+|[。！？]["'”’」』）]*\s*|$)""", re.DOTALL)
_END: Final = 10
_ENDS_SENTENCE: Final = re.compile(r"""[.!?…。！？]["'”’»)\]」』）]*\s*$""")
# A definition at the beginning of a line, or one level below it, in most languages.
_DEFINITION: Final = re.compile(
    r"(?:\s{2,4}|\t)?(?:@\w|(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub|"
    r"unsafe|inline|virtual|override|open|sealed|data|extern|const|declare)(?:\([^)]*\))?\s+)*"
    r"(?:def|class|func|function|fn|fun|interface|struct|enum|trait|impl|type|module|namespace|protocol|extension|"
    r"object|record|message|service|rpc|sub|proc|defn|defmodule|defp|template|procedure|CREATE|create)\b)"
)
# A line at the left edge of languages that indent the body: a declaration such as "int main(void) {".
_LEFT_EDGE: Final = re.compile(r"[A-Za-z_].*[({=:]\s*+$|[A-Za-z_][\w:<>,*&\s]*\(.*\)\s*+\{?+\s*+$")
_COMMENT: Final = re.compile(r"\s*(?://|#|/\*|\*|--|;|%|\"\"\"|''')")


def units_of(document: ParsedDocument, max_tokens: int) -> list[Unit]:
    """Returns the units of a document. Joined, those of a line are the line."""
    boundaries = _boundaries(document)
    units: list[Unit] = []
    for number, (line, boundary) in enumerate(zip(document.lines, boundaries, strict=True), 1):
        tokens = approximate_tokens(line) + 1  # the line feed
        if tokens <= max_tokens:
            units.append(Unit(line, number, tokens, boundary, not line.strip()))
            continue
        for index, part in enumerate(_parts(line, max_tokens)):
            before = boundary if index == 0 else Boundary.SENTENCE
            units.append(Unit(part, number, approximate_tokens(part) or 1, before, not part.strip()))
    return units


def _boundaries(document: ParsedDocument) -> Iterator[Boundary]:
    pages = set(document.page_starts)
    code = document.kind is DocumentKind.CODE
    before_comment: Boundary | None = None
    was_blank, fence, before = True, False, ""
    lines = document.lines
    for index, line in enumerate(lines):
        if code:
            boundary = _boundary_in_code(line, was_blank=was_blank)
            # A comment or decorator belongs to the definition after it.
            is_comment = bool(_COMMENT.match(line)) or line.lstrip().startswith("@")
            if is_comment and before_comment is None and _precedes_definition(lines, index):
                boundary = Boundary.SECTION
            elif before_comment is not None and boundary is Boundary.SECTION:
                boundary = Boundary.LINE
            before_comment = boundary if is_comment else None
        else:
            is_heading = document.kind is DocumentKind.PROSE and not fence and bool(_HEADING.match(line))
            boundary = Boundary.SECTION if is_heading else Boundary.PARAGRAPH if was_blank else Boundary.LINE
            if boundary is Boundary.LINE and document.kind is DocumentKind.PROSE and _ENDS_SENTENCE.search(before):
                boundary = Boundary.LINE_AFTER_SENTENCE
            if line.lstrip().startswith(("```", "~~~")):
                fence = not fence
        yield Boundary.SECTION if index + 1 in pages else boundary
        was_blank, before = not line.strip(), line[-_END:]


def _boundary_in_code(line: str, *, was_blank: bool) -> Boundary:
    if _DEFINITION.match(line) or (was_blank and _LEFT_EDGE.match(line)):
        return Boundary.SECTION
    return Boundary.PARAGRAPH if was_blank and line.strip() else Boundary.LINE


def _precedes_definition(lines: tuple[str, ...], index: int) -> bool:
    """Returns whether the comments that begin at this line end at a definition."""
    for line in lines[index : index + 30]:
        if _COMMENT.match(line) and not _DEFINITION.match(line):
            continue
        return _boundary_in_code(line, was_blank=True) is Boundary.SECTION
    return False


def _parts(line: str, max_tokens: int) -> Iterator[str]:
    """Yields sentences of a line, and parts of sentences that are too long."""
    for sentence in _SENTENCE.findall(line):
        rest = sentence
        while rest and approximate_tokens(rest) > max_tokens:
            size = _fitting(rest, max_tokens)
            blank = rest.rfind(" ", size // 2, size)
            size = blank + 1 if blank > 0 else size
            yield rest[:size]
            rest = rest[size:]
        if rest:
            yield rest


def _fitting(text: str, max_tokens: int) -> int:
    """Returns the largest number of first characters that have at most `max_tokens` tokens; at least 1."""
    low, high = 1, min(len(text), max_tokens * 16)
    while low < high:
        middle = (low + high + 1) // 2
        if approximate_tokens(text[:middle]) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return low


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


def passages_of(document: ParsedDocument, chunk_size: int) -> list[Passage]:
    """Returns the passages of a document, in order. They contain every line that is not blank, once.

    Deterministic: equal documents have equal passages.

    Args:
        document: The document.
        chunk_size: The largest number of tokens of a passage.

    Raises:
        ValueError: `chunk_size` is not positive.
    """
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1.")
    units = units_of(document, min(chunk_size, _MAX_CHUNK_SIZE))
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
