"""Searches of an agent's files by similarity and words, and resolved citations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_text

from mnemesh_files.model.grep import SkippedFile

MAX_QUERY_CHARACTERS: Final = 10_000
DEFAULT_HITS: Final = 5
MAX_HITS: Final = 50
MAX_SEARCHED_IDS: Final = 1_000
MAX_CITING_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileHit:
    """A passage that a search found."""

    file_id: str
    file_name: str
    passage_id: str
    text: str
    score: float
    start_line: int
    end_line: int
    start_page: int | None = None
    end_page: int | None = None


@dataclass(frozen=True, slots=True)
class FileSearchResult:
    """The result of a search, best first."""

    hits: tuple[FileHit, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedCitation:
    """A citation in a text, with what it cites."""

    start: int
    end: int
    file_name: str
    start_line: int
    end_line: int
    file_id: str | None = None
    """None if the citation is unresolved."""
    start_page: int | None = None
    end_page: int | None = None
    quote: str = ""


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
