"""A parsed document: its text in lines, its limits, and the warnings about what was left out."""

import json
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

MAX_VERBATIM_LINE: Final = 4_000
"""Characters of a line of a text file. A longer one is divided, which changes the numbers of the lines after it."""
MAX_DOCUMENT_LINE: Final = 500
"""Characters of a line of a document whose format has no lines, such as a paragraph of a docx."""

# Python, Unicode and editors disagree on whether these end a line, so no text contains them.
_OTHER_LINE_BREAKS: Final = ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_SENTENCE_END: Final = re.compile(r"""[.!?…]["'”’»)\]]*\s+|[。！？]["'”’」』）]*\s*""")
_BLANK: Final = re.compile(r"\s+")
_HIDDEN: Final = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
_FLAG: Final = re.compile("\U0001f3f4[\U000e0020-\U000e007f]+")
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
MEGABYTE: Final = 1024 * 1024
PAGES_WITHOUT_TEXT = "Pages without text, such as scanned images"
"""The beginning of the warning that names them."""
_SHARE_OF_TIME: Final = 0.7
"""The share after which a parser stops and returns what it has. The rest is for the result."""


def normalized(text: str) -> str:
    """Returns `text` with line feeds as the only line breaks, and without NUL characters and lone surrogates."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    for character in _OTHER_LINE_BREAKS:
        if character in text:
            text = text.replace(character, " ")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-8", "replace").decode()
    return text


def without_final_line_feed(text: str) -> str:
    """Returns `text` without one line feed at its end: it ends the last line and begins none."""
    return text.removesuffix("\n")


def hidden_characters(text: str) -> int:
    """Returns how many characters change the direction of text or hide text: a reader does not see what they do."""
    if text.isascii():
        return 0
    return len(_HIDDEN.findall(_FLAG.sub("", text)))


def hidden_characters_warning(text: str) -> list[str]:
    count = hidden_characters(text)
    if not count:
        return []
    return [f"The text contains {count:,} invisible characters that reverse or hide text. They were kept."]


def with_divided_lines(text: str, max_chars: int) -> tuple[str, int]:
    """Returns `text` with lines of at most `max_chars` characters, and the number of lines that were divided."""
    if len(text) <= max_chars:
        return text, 0
    lines = text.split("\n")
    divided = sum(len(line) > max_chars for line in lines)
    if not divided:
        return text, 0
    lines = [part for line in lines for part in (divide(line, max_chars) if len(line) > max_chars else (line,))]
    return "\n".join(lines), divided


def divide(line: str, max_chars: int) -> Iterator[str]:
    """Yields the parts of a line, each at most `max_chars` characters: sentences, else words, else characters.

    White space at a division is dropped.
    """
    position = 0
    while len(line) - position > max_chars:
        end = _division(line, position, position + max_chars)
        if part := line[position:end].rstrip():
            yield part
        position = end
        if blank := _BLANK.match(line, position):
            position = blank.end()
    if part := line[position:].rstrip():
        yield part


def _division(line: str, start: int, limit: int) -> int:
    """Returns the position in (start, limit] at which a part ends."""
    end = 0
    for match in _SENTENCE_END.finditer(line, start, limit):
        end = match.end()
    if end > start + (limit - start) // 4:
        return end
    middle = start + (limit - start) // 2
    for position in range(limit - 1, middle, -1):
        if line[position].isspace():
            return position + 1
    return limit


class TextBuilder:
    """Collects the lines of a document up to a number of characters."""

    def __init__(self, max_chars: int, max_line: int = MAX_DOCUMENT_LINE) -> None:
        self._max_chars = max_chars
        self._max_line = max_line
        self._lines: list[str] = []
        self._starts: list[int] = []
        self._chars = 0
        self.is_full = False
        """Whether the limit was reached. Later lines are dropped."""

    def begin_page(self) -> None:
        """Begins a page, slide or sheet at the next line, after an empty one."""
        self.add_blank()
        self._starts.append(len(self._lines) + 1)

    def add(self, text: str) -> None:
        """Adds the lines of a text; lines that are too long are divided."""
        for line in normalized(text).split("\n"):
            if len(line) <= self._max_line:
                self._add_line(line)
            else:
                for part in divide(line, self._max_line):
                    self._add_line(part)

    def add_all(self, texts: Iterable[str]) -> None:
        """Adds texts until the limit is reached."""
        for text in texts:
            if self.is_full:
                return
            self.add(text)

    def add_blank(self) -> None:
        """Adds an empty line, unless the last line is empty or there is none."""
        if self._lines and self._lines[-1]:
            self._add_line("")

    def text(self) -> str:
        """Returns the lines, without blank lines at the end."""
        return "\n".join(self._lines[: self._end()])

    def page_starts(self) -> tuple[int, ...]:
        """Returns the first line of each page."""
        end = self._end() + 1
        return tuple(min(start, end) for start in self._starts)

    def _end(self) -> int:
        end = len(self._lines)
        while end and not self._lines[end - 1].strip():
            end -= 1
        return end

    def _add_line(self, line: str) -> None:
        if self.is_full:
            return
        self._chars += len(line) + 1
        if self._chars > self._max_chars:
            self.is_full = True
            return
        self._lines.append(line.rstrip())


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
    """Partial: the characters of the text of a document that is not a text file, such as a PDF."""
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
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "ParsedDocument":
        """Returns the document of `to_json`.

        Raises:
            ValueError: The text is not such a document.
        """
        try:
            return cls.from_value(json.loads(text))
        except RecursionError as error:
            raise ValueError("this is not a parsed document") from error

    @classmethod
    def from_value(cls, value: object) -> "ParsedDocument":
        """Returns the document of a decoded `to_json`. The types of all fields are checked.

        Raises:
            ValueError: The value is not such a document.
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


class Budget:
    """The limits of one document, its time, and the warnings about what was left out."""

    def __init__(self, limits: ParseLimits) -> None:
        self.limits = limits
        self.warnings: list[str] = []
        self._deadline = time.monotonic() + limits.seconds * _SHARE_OF_TIME

    @property
    def is_late(self) -> bool:
        """Whether the parser must stop soon."""
        return time.monotonic() > self._deadline

    def builder(self, max_line: int = MAX_DOCUMENT_LINE) -> TextBuilder:
        """Returns an empty text that keeps the limit of characters."""
        return TextBuilder(self.limits.document_characters, max_line)

    def warn(self, text: str) -> None:
        """Adds a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def warn_if_full(self, text: TextBuilder) -> None:
        """Adds a warning if the text reached the limit of characters."""
        if text.is_full:
            self.warn(f"The text has more than {self.limits.document_characters:,} characters. The rest was left out.")

    def pages_to_read(self, total: int, noun: str) -> int:
        """Returns how many of the pages are read, and warns about the others.

        Args:
            total: The number of pages.
            noun: What they are, in the plural.
        """
        limit = self.limits.pages
        if total > limit:
            self.warn(f"{noun.capitalize()} {limit + 1:,} to {total:,} are beyond the limit of {limit:,} {noun}.")
        return min(total, limit)

    def warn_late(self, page: int, total: int, noun: str) -> None:
        """Adds a warning that the time is over before a page."""
        self.warn(f"{noun.capitalize()} {page:,} to {total:,} were left out: reading them takes too long.")
