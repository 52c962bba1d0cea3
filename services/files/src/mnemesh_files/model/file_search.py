"""Searches in files: by words and patterns, by meaning, and the citations of their results."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import re2  # type: ignore[import-untyped]
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_text
from mnemesh_types.files import FileHit, FileMatches, GrepMatch, SkippedFile

from mnemesh_files.errors import FilePatternInvalid

MAX_PATTERN_CHARACTERS: Final = 1_000
MAX_MATCHES: Final = 1_000
MAX_FILE_BYTES: Final = 50 * 1024 * 1024
MAX_TOTAL_BYTES: Final = 200 * 1024 * 1024
MAX_CONTEXT_LINES: Final = 20
MAX_PAGE: Final = 100
DEFAULT_PAGE: Final = 20
DEFAULT_CONTEXT_LINES: Final = 1
MAX_PAGE_BYTES: Final = 2_000_000
"""The most bytes of text that a page of matches has."""
MAX_LINE_CHARACTERS: Final = 2_000
"""The most characters of a line in a match."""
_CHUNK_BYTES: Final = 1024 * 1024
"""The bytes that are searched between two looks at the clock."""
_PATTERN_MEMORY: Final = 8 * 1024 * 1024
"""The bytes that the automaton of a pattern may have."""
_NO_GLOB: Final = frozenset("^$()[]{}+|\\")

MAX_QUERY_CHARACTERS: Final = 10_000
DEFAULT_HITS: Final = 5
MAX_HITS: Final = 50
MAX_SEARCHED_IDS: Final = 1_000
MAX_CITING_BYTES: Final = 1024 * 1024

MAX_CITATIONS: Final = 1_000
MAX_QUOTE_CHARACTERS: Final = 2_000
_MAX_NAME: Final = 512
"""The longest name of a file with its folder."""
_LINES: Final = re.compile(r":(\d{1,9})(?:-(\d{1,9}))?\]")


@dataclass(frozen=True, slots=True)
class GrepQuery:
    """A search by pattern."""

    pattern: str
    include: str | None = None
    context_lines: int = DEFAULT_CONTEXT_LINES
    offset: int = 0
    limit: int = DEFAULT_PAGE


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line that matches."""

    number: int
    start: int
    """The position of its first byte in the text."""
    end: int
    """The position after its last byte, without the line feed."""


def size_of(match: GrepMatch) -> int:
    """Returns the size of the texts of a match in bytes."""
    return sum(len(line.encode()) for line in (match.text, *match.lines_before, *match.lines_after))


@dataclass(slots=True)
class GrepResult:
    matches: list[GrepMatch] = field(default_factory=list)
    """The page."""
    total: int = 0
    """The number of matches, up to MAX_MATCHES."""
    files: list[FileMatches] = field(default_factory=list)
    """The files with matches, most matches first."""
    files_searched: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    capped: bool = False
    timed_out: bool = False
    next_offset: int | None = None


def compiled(pattern: str, field_: str = "pattern") -> Any:
    """Returns a pattern that ignores case and matches within one line.

    Raises:
        FilePatternInvalid: it is empty, too long, or no regular expression of RE2.
    """
    if not pattern.strip():
        raise FilePatternInvalid(f"{field_} is empty. Give a word or a regular expression.", field_)
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise FilePatternInvalid(
            f"Pattern too complex: {len(pattern)} chars > {MAX_PATTERN_CHARACTERS} limit. Use a shorter {field_}.",
            field_,
        )
    options = re2.Options()
    options.case_sensitive, options.never_nl, options.log_errors = False, True, False
    options.max_mem = _PATTERN_MEMORY
    try:
        return re2.compile(f"(?m){pattern}", options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise FilePatternInvalid(
            f"Invalid regex pattern: {text.replace('(?m)', '', 1)}. Lookaround and backreferences are not supported.",
            field_,
        ) from error


def name_filter(include: str | None) -> Callable[[str], bool]:
    """Returns whether the name of a file is included.

    A text with * or ? and no other special character of regular expressions is a glob: it matches the whole name, or
    the part after the folder. Any other text is a regular expression, which may match anywhere.

    Raises:
        FilePatternInvalid: it is not a regular expression.
    """
    if include is None or not include.strip():
        return lambda _name: True
    include = include.strip()
    if set(include) & set("*?") and not set(include) & _NO_GLOB:
        parts = (".*" if c == "*" else "." if c == "?" else re2.escape(c) for c in include)
        glob = compiled("".join(parts), "include")
        return lambda name: glob.fullmatch(name) is not None or glob.fullmatch(name.partition("/")[2]) is not None
    regex = compiled(include, "include")
    return lambda name: regex.search(name) is not None


def found_lines(pattern: Any, text: bytes, is_late: Callable[[], bool]) -> Iterator[FoundLine | None]:
    """Yields the lines of a text that match, in order; None if the time is over.

    Args:
        pattern: from `compiled`.
        text: UTF-8, with lines that end at a line feed.
        is_late: returns whether the time is over. It is asked about once per megabyte.
    """
    number, counted, position = 1, 0, 0
    while text and position <= len(text):
        if is_late():
            yield None
            return
        stop = _end_of_chunk(text, position)
        while position <= stop:
            span = pattern.search(text, position, stop)
            if span is None:
                break
            start = text.rfind(b"\n", 0, span.start()) + 1
            end = text.find(b"\n", span.start())
            end = len(text) if end < 0 else end
            number += text.count(b"\n", counted, start)
            counted = start
            yield FoundLine(number, start, end)
            position = end + 1
        position = max(position, stop + 1)


def _end_of_chunk(text: bytes, start: int) -> int:
    """Returns the end of the last line that a chunk contains whole, or of its first line if that is longer."""
    if start + _CHUNK_BYTES >= len(text):
        return len(text)
    end = text.rfind(b"\n", start, start + _CHUNK_BYTES)
    if end < 0:
        end = text.find(b"\n", start + _CHUNK_BYTES)
    return len(text) if end < 0 else end


def match_of(
    found: FoundLine, text: bytes, context: int, *, file_id: str, file_name: str, page_starts: tuple[int, ...] = ()
) -> GrepMatch:
    """Returns a match with as many lines before and after it as `context`."""
    start, before = found.start, []
    for _ in range(context):
        if start == 0:
            break
        end, start = start - 1, text.rfind(b"\n", 0, start - 1) + 1
        before.append(_line(text, start, end))
    end, after = found.end, []
    for _ in range(context):
        if end >= len(text):
            break
        begin = end + 1
        end = text.find(b"\n", begin)
        end = len(text) if end < 0 else end
        after.append(_line(text, begin, end))
    page = max(1, bisect_right(page_starts, found.number)) if page_starts else None
    shown = _line(text, found.start, found.end)
    return GrepMatch(file_id, file_name, found.number, shown, tuple(reversed(before)), tuple(after), page)


def _line(text: bytes, start: int, end: int) -> str:
    line = text[start:end].decode(errors="replace")
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]}…"


@dataclass(frozen=True, slots=True)
class FileSearchResult:
    """The result of a search, best first."""

    hits: tuple[FileHit, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    degraded: bool = False


def require_query(query: str) -> str:
    """Returns the query of a search. Raises InvalidArgument."""
    require_text(query, "query", max_chars=MAX_QUERY_CHARACTERS)
    if not query.strip():
        raise InvalidArgument("Empty search query provided", field="query")
    return query.strip()


def hit_limit(limit: int) -> int:
    """Returns the number of hits to return; 0 is the default. Raises InvalidArgument."""
    if not 0 <= limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")
    return limit or DEFAULT_HITS


def require_citing_text(text: str) -> str:
    """Returns a text whose citations are resolved. Raises InvalidArgument if it is larger than 1 MB."""
    if len(text) > MAX_CITING_BYTES or len(text.encode()) > MAX_CITING_BYTES:
        raise InvalidArgument("text must be at most 1 MB of UTF-8.", field="text")
    return text


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
