"""Parsed documents, the limits of parsing, and its errors, whose texts are for the owner of the file."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

MEGABYTE: Final = 1024 * 1024

PAGES_WITHOUT_TEXT = "Pages without text, such as scanned images"
"""The beginning of the warning that names them."""


class Cause(StrEnum):
    """Why a document cannot be parsed."""

    UNSUPPORTED = "unsupported"
    """No parser reads its format."""
    ENCRYPTED = "encrypted"
    """It needs a password."""
    DAMAGED = "damaged"
    """It breaks the rules of its format."""
    TOO_LARGE = "too_large"
    """It exceeds a limit of size: bytes, expansion, pixels, nesting, memory."""
    TOO_SLOW = "too_slow"
    """It exceeds a limit of time."""
    FAILED = "failed"
    """The parser failed. The log has the details."""


class DocumentUnreadable(Exception):
    """The document cannot be parsed. Trying again does not help.

    The message names cause and remedy. It is stored as the `error_message` of the file.
    """

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message


class ParserUnavailable(Exception):
    """This host cannot run the parser: it isolates processes less than the operator requires.

    Plain text is parsed nevertheless. Another host, or a lower MNEMESH_FILES_MIN_SANDBOX, parses the document.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseLimits:
    """What one document may cost. Beyond the limits marked partial, the rest is left out with a warning."""

    document_mb: int = 200
    """The size of a file that a parser in the sandbox receives."""
    text_bytes: int = 64 * MEGABYTE
    """Partial: the size of a text file."""
    document_characters: int = 10_000_000
    """Partial: the characters of the text of a document that is no text file, such as a PDF."""
    pages: int = 2_000
    """Partial: pages, slides and sheets."""
    rows: int = 200_000
    """Partial: the rows of all sheets of a workbook together."""
    columns: int = 500
    """Partial: the columns of a sheet or table."""
    pixels: int = 200_000_000
    """The pixels of an image."""
    expanded_mb: int = 500
    """The size of all parts of a compressed document together that a parser reads, after expansion."""
    expansion_ratio: int = 200
    """How many times larger a part may become by expansion, if it is larger than 1 MB then."""
    archive_entries: int = 20_000
    """The number of parts of a compressed document."""
    seconds: float = 60.0
    """The time for one document in the sandbox. Partial for pages of a PDF."""
    memory_mb: int = 1_024
    """The memory of one parser."""

    def to_values(self) -> dict[str, float]:
        """Returns the limits as JSON values, for `ParseLimits(**values)`."""
        return asdict(self)


DEFAULT_LIMITS: Final = ParseLimits()


class DocumentKind(StrEnum):
    """What the lines of a document are. It decides how windows and passages divide them."""

    CODE = "code"
    """Lines of a programming or markup language, with indentation. Line numbers are those of the file."""
    PROSE = "prose"
    """Headings, paragraphs, lists and tables."""
    DATA = "data"
    """Records: one per line, such as rows of a table."""
    IMAGE = "image"
    """A picture. It has no lines unless a model described it."""


@dataclass(frozen=True)
class ParsedDocument:
    """The text of a document.

    `text` has lines that end at a line feed. It contains no other line breaks, no NUL characters and no lone
    surrogates, so `text.splitlines()` and `text.split("\\n")` agree. There is no line feed at the end.
    """

    kind: DocumentKind
    media_type: str
    """As detected, for example "application/pdf"."""
    text: str = ""
    language: str = ""
    """The programming language of code, in lower case, for example "python"; otherwise empty."""
    title: str = ""
    """From the metadata of the document, or its first heading; empty if there is none."""
    encoding: str = ""
    """The character encoding of a text file, for example "utf-8"; empty for other documents."""
    page_starts: tuple[int, ...] = ()
    """The first line of each page, slide or sheet, from 1, ascending. A page without text starts where the next one
    does. Empty for documents without pages."""
    page_names: tuple[str, ...] = ()
    """The names of the pages, for sheets and slides; otherwise empty."""
    total_pages: int | None = None
    """The number of pages that the document has. Larger than `len(page_starts)` if some were left out."""
    image_width: int | None = None
    image_height: int | None = None
    """The size of an image in pixels."""
    warnings: tuple[str, ...] = ()
    """What was left out or replaced, and why: sentences for people."""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, without line feeds."""
        return tuple(self.text.split("\n")) if self.text else ()

    @property
    def total_lines(self) -> int:
        """The number of lines. An empty text has none."""
        return self.text.count("\n") + 1 if self.text else 0

    @property
    def total_chars(self) -> int:
        """The number of characters (Unicode code points)."""
        return len(self.text)

    def page_of(self, line: int) -> int | None:
        """Returns the page of a line, both from 1; None for a document without pages."""
        return page_of(line, self.page_starts)

    def to_json(self) -> str:
        """Returns the document as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ParsedDocument:
        """Returns the document of `to_json`.

        Raises:
            ValueError: The text is no such document.
        """
        try:
            return cls.from_value(json.loads(text))
        except RecursionError as error:
            raise ValueError("this is no parsed document") from error

    @classmethod
    def from_value(cls, value: object) -> ParsedDocument:
        """Returns the document of a decoded `to_json`. The types of all fields are checked.

        Raises:
            ValueError: The value is no such document.
        """
        import msgspec  # noqa: PLC0415 - the sandbox does not have it

        return msgspec.convert(value, cls)


def page_of(line: int, page_starts: tuple[int, ...]) -> int | None:
    """Returns the page of a line, both from 1; None without pages.

    Args:
        line: The number of the line.
        page_starts: The first line of each page, ascending.
    """
    return max(1, bisect_right(page_starts, line)) if page_starts else None
