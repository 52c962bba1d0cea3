"""The files of agents, as prompts and tools show them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_PAGE: Final = 20
"""The number of matches that a call of grep_files returns."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The amount of file content that an agent sees at once."""

    max_files_open: int = 5
    per_file_characters: int = 50_000


@dataclass(frozen=True, slots=True)
class DirectoryFile:
    """A file in the prompt."""

    name: str
    """With the name of its folder."""
    is_open: bool
    value: str = ""
    status: str = "completed"
    """The state of its processing: fetching, pending, parsing, embedding, completed or error."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A folder in the prompt. `files` has the open files and the first by name, of `file_count`."""

    name: str
    description: str | None = None
    instructions: str | None = None
    files: tuple[DirectoryFile, ...] = ()
    file_count: int = 0


@dataclass(frozen=True, slots=True)
class Directories:
    """The folders of an agent as of a revision."""

    revision: int = 0
    directories: tuple[Directory, ...] = ()
    limits: FileLimits = FileLimits()
    open_files: int = 0


@dataclass(frozen=True, slots=True)
class FileView:
    """A range of lines, from 1. None is the beginning or the end of the file."""

    start_line: int | None
    end_line: int | None


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """A window to open."""

    name: str
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that was opened, with the text of its window."""

    file_id: str
    name: str
    view: FileView
    previous: FileView | None
    """The window before; None if the file was closed."""
    value: str
    media_type: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The result of opening files: the files, and the names of those that were closed."""

    opened: tuple[OpenedFile, ...]
    closed_others: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileMatch:
    """A line that matches a pattern, with the lines around it."""

    file_name: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    page: int | None = None


@dataclass(frozen=True, slots=True)
class FileMatches:
    """The result of a search by pattern."""

    matches: tuple[FileMatch, ...]
    total: int
    files: tuple[tuple[str, int], ...]
    """The names of the files with matches and their numbers, most first."""
    files_searched: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """The number of files that were not searched by cause: file_too_large, total_too_large, not_ready, timeout."""
    capped: bool = False
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class FileHit:
    """A passage of a file that a search found."""

    file_name: str
    text: str
    start_line: int | None = None
    end_line: int | None = None
    start_page: int | None = None
    end_page: int | None = None


@dataclass(frozen=True, slots=True)
class FileHits:
    """The result of a search by meaning and words, best first."""

    hits: tuple[FileHit, ...]
    skipped: int = 0
    """The number of files that cannot be searched yet."""
    degraded: bool = False


_LIMITS: Final = (
    (8_000, FileLimits(3, 5_000)),
    (32_000, FileLimits(5, 15_000)),
    (128_000, FileLimits(10, 25_000)),
    (200_000, FileLimits(10, 40_000)),
)
"""The limits of agents by the largest context window, in tokens, for which they hold."""
_LARGEST: Final = FileLimits(15, 40_000)
_DEFAULTS: Final = frozenset({FileLimits(), _LARGEST, *(limits for _, limits in _LIMITS)})
_MOST_LISTED: Final = 200
_LEAST_LISTED: Final = 10
_CHARACTERS_PER_LISTED: Final = 250


def default_limits(context_window: int) -> FileLimits:
    """Returns the limits of an agent whose model has a context window of so many tokens."""
    return next((limits for tokens, limits in _LIMITS if context_window <= tokens), _LARGEST)


def wanted_limits(
    current: FileLimits, context_window: int, max_files_open: int | None, per_file_characters: int | None
) -> FileLimits:
    """Returns the limits that an agent should have: those of its settings, or else those of its context window.

    Limits that somebody set in the files service stay, unless the agent has settings.
    """
    limits = limits_in_effect(context_window, max_files_open, per_file_characters)
    if max_files_open is None and per_file_characters is None:
        return limits if current in _DEFAULTS else current
    return limits


def limits_in_effect(context_window: int, max_files_open: int | None, per_file_characters: int | None) -> FileLimits:
    """Returns the limits of an agent's settings, or else those of its context window."""
    default = default_limits(context_window)
    return FileLimits(max_files_open or default.max_files_open, per_file_characters or default.per_file_characters)


def listed_files(limits: FileLimits) -> int:
    """Returns the number of closed files that a prompt lists: fewer for an agent that sees less of each file."""
    return max(_LEAST_LISTED, min(_MOST_LISTED, limits.per_file_characters // _CHARACTERS_PER_LISTED))
