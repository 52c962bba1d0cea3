"""The units of which passages consist: lines, and parts of lines that are too long; and the boundaries between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mnemesh_files.parsers.document import DocumentKind, ParsedDocument


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


def units_of(document: ParsedDocument, max_tokens: int, count_tokens: Callable[[str], int]) -> list[Unit]:
    """Returns the units of a document. Joined, those of a line are the line."""
    boundaries = _boundaries(document)
    units: list[Unit] = []
    for number, (line, boundary) in enumerate(zip(document.lines, boundaries, strict=True), 1):
        tokens = count_tokens(line) + 1  # the line feed
        if tokens <= max_tokens:
            units.append(Unit(line, number, tokens, boundary, not line.strip()))
            continue
        for index, part in enumerate(_parts(line, max_tokens, count_tokens)):
            before = boundary if index == 0 else Boundary.SENTENCE
            units.append(Unit(part, number, count_tokens(part) or 1, before, not part.strip()))
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


def _parts(line: str, max_tokens: int, count_tokens: Callable[[str], int]) -> Iterator[str]:
    """Yields sentences of a line, and parts of sentences that are too long."""
    for sentence in _SENTENCE.findall(line):
        rest = sentence
        while rest and count_tokens(rest) > max_tokens:
            size = _fitting(rest, max_tokens, count_tokens)
            blank = rest.rfind(" ", size // 2, size)
            size = blank + 1 if blank > 0 else size
            yield rest[:size]
            rest = rest[size:]
        if rest:
            yield rest


def _fitting(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> int:
    """Returns the largest number of first characters that have at most `max_tokens` tokens; at least 1."""
    low, high = 1, min(len(text), max_tokens * 16)
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(text[:middle]) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return low
