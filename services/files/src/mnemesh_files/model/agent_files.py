"""The folders and files that agents hold, and requests to open and close files."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from itertools import chain
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.files import FileLimits, FileStatus, FileView, Folder

MAX_FILES_OPEN: Final = 1_000
"""The largest limit on open files that an agent can have."""
MAX_VIEW_CHARACTERS: Final = 1_000_000
"""The largest limit on the characters of one file that an agent can have."""
MAX_SHOWN_CHARACTERS: Final = 2_000_000
"""The most characters of all open files of an agent together: a response holds them, with the names of its files."""

TRUNCATED: Final = "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."

_SENTENCE_END: Final = re.compile(r"""(?:[.!?…]["'”’»)\]]*\s+(?=[^\sa-z])|[。！？]["'”’」』）]*\s*(?=\S))""")


DEFAULT_LIMITS: Final = FileLimits(max_files_open=5, per_file_view_window_char_limit=50_000)


@dataclass(frozen=True, slots=True)
class Window:
    """A range of lines as it was requested. The lines are 1-based, and both ends are inclusive."""

    start_line: int | None = None
    """None is the beginning of the file."""
    end_line: int | None = None
    """None is the end of the file. It may be greater than the number of lines."""

    @property
    def first(self) -> int:
        """The number of the first line."""
        return self.start_line or 1

    def last(self, total_lines: int) -> int:
        """Returns the number of the last line that exists; less than `first` if there is none."""
        return total_lines if self.end_line is None else min(self.end_line, total_lines)


def require_valid_limits(limits: FileLimits) -> FileLimits:
    """Returns `limits` if an agent can have them. Raises InvalidArgument."""
    for name, value, most in (
        ("max_files_open", limits.max_files_open, MAX_FILES_OPEN),
        ("per_file_view_window_char_limit", limits.per_file_view_window_char_limit, MAX_VIEW_CHARACTERS),
    ):
        if not 1 <= value <= most:
            raise InvalidArgument(f"limits.{name} must be between 1 and {most:,}.", field=f"limits.{name}")
    return limits


def shown_characters(limits: FileLimits) -> int:
    """Returns the most characters of one file: the limit, or less if all open files would exceed a response."""
    return min(limits.per_file_view_window_char_limit, MAX_SHOWN_CHARACTERS // limits.max_files_open)


def window_of(offset: int | None, length: int | None, field: str) -> Window:
    """Returns the window that skips `offset` lines and has `length` lines.

    Args:
        offset: the number of lines to skip; None is none.
        length: the number of lines; None is all up to the end.
        field: the path of the request, for errors.

    Raises:
        InvalidArgument: the offset is negative, or the length is less than 1.
    """
    if offset is not None and offset < 0:
        raise InvalidArgument(f"{field}.offset must be at least 0, not {offset}.", field=f"{field}.offset")
    if length is not None and length < 1:
        raise InvalidArgument(f"{field}.length must be at least 1, not {length}.", field=f"{field}.length")
    if length is None:
        return Window(None if offset is None else offset + 1)
    return Window((offset or 0) + 1, (offset or 0) + length)


def require_in_file(window: Window, total_lines: int, name: str, field: str) -> Window:
    """Returns the window if the file has its first line. A window at the beginning fits every file.

    Raises:
        InvalidArgument: the file has fewer lines. Metadata: field, file_name, total_lines.
    """
    if window.first > max(total_lines, 1):
        raise InvalidArgument(
            f"File {name} has only {total_lines} lines, but requested offset {window.first - 1} is out of range.",
            field=f"{field}.offset",
            file_name=name,
            total_lines=str(total_lines),
        )
    return window


def page_of(line: int, page_starts: Sequence[int]) -> int | None:
    """Returns the page of a line, from 1; None in a file without pages."""
    return max(1, bisect_right(page_starts, line)) if page_starts else None


def view_of(window: Window, total_lines: int, page_starts: Sequence[int]) -> FileView:
    """Returns the visible part of a file through a window."""
    end = None if window.end_line is None else min(window.end_line, total_lines)
    if not total_lines:
        return FileView(window.start_line, end, 0)
    return FileView(
        window.start_line,
        end,
        total_lines,
        page_of(window.first, page_starts),
        page_of(window.last(total_lines), page_starts),
    )


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


MAX_LISTED_FILES: Final = 200
"""The number of files of a folder that directories list, besides open ones."""
MAX_REFERENCES: Final = 1_000
MAX_AGENT_FOLDERS: Final = 100
"""The number of folders that an agent can hold."""


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file of an agent, by id or by name."""

    file_id: str | None = None
    name: str | None = None
    """With its folder, or without if only one file of the agent has it."""

    @property
    def shown(self) -> str:
        """The reference for people."""
        return self.name if self.name is not None else self.file_id or ""


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A window to open."""

    file: FileReference
    offset: int | None = None
    length: int | None = None

    def window(self, field: str) -> Window:
        """Returns the window. Raises InvalidArgument."""
        return window_of(self.offset, self.length, field)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file as an agent holds it."""

    agent_id: str
    file_id: str
    folder_id: str
    name: str
    """With the name of its folder."""
    status: FileStatus
    media_type: str
    text_id: str | None
    """The text that views show; None before the file is parsed, and for images."""
    kind: str | None
    total_lines: int
    total_chars: int
    page_starts: tuple[int, ...]
    attached_at: datetime
    is_open: bool = False
    window: Window | None = None
    """The window that was opened last."""
    used: int = 0
    """The number of the last use among those of the agent; 0 for a file that was never used."""
    used_at: datetime | None = None
    updated_at: datetime | None = None
    size_bytes: int = 0
    is_searchable: bool = False
    """Whether the passages of its text are in the archive."""

    @property
    def is_image(self) -> bool:
        """Whether the file is a picture, which has no text of its own."""
        return self.media_type.startswith("image/") and self.media_type != "image/svg+xml"

    @property
    def is_ready(self) -> bool:
        """Whether the file can be opened."""
        return self.text_id is not None or (self.is_image and self.status is FileStatus.COMPLETED)

    @property
    def style(self) -> ViewStyle:
        """How views show its lines."""
        return _STYLES.get(self.kind or "", ViewStyle.LINES)


_STYLES: Final = {"code": ViewStyle.CODE, "prose": ViewStyle.SENTENCES, "data": ViewStyle.LINES}


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file with the text of its window."""

    file: HeldFile
    view: FileView | None
    """None if no window was ever opened."""
    text: str = ""
    """Empty if the file is closed."""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that a request opened."""

    file_id: str
    window: Window
    previous: Window | None
    """The window before; None if the file was closed."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The effect of a request to open files."""

    opened: tuple[OpenedFile, ...]
    closed_others: tuple[str, ...]
    """The names of files that were closed because the request asked for it."""
    evicted: tuple[str, ...]
    """The names of files that were closed because of the limit, least recently used first."""
    revision: int


@dataclass(frozen=True, slots=True)
class Attachment:
    """The folders of an agent after a change."""

    folder: Folder | None
    folder_count: int
    revision: int


@dataclass(frozen=True, slots=True)
class HeldFolder:
    """A folder of an agent, with some of its files."""

    folder: Folder
    files: tuple[HeldFile, ...]
    """The open ones, and the first by name; ordered by name."""


@dataclass(frozen=True, slots=True)
class Directories:
    """What the prompt of an agent shows of its files. `text` is by file id, for open files."""

    agent_id: str
    revision: int = 0
    folders: tuple[HeldFolder, ...] = ()
    limits: FileLimits = DEFAULT_LIMITS
    open_files: int = 0
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AgentFileFilter:
    """The files of a list; unset conditions match all."""

    folder_id: str | None = None
    is_open: bool | None = None


class AgentFileOrder(Enum):
    """The orders of a list of files of an agent."""

    ATTACHED = "attached_at"
    USED = "used_at"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Whether an agent holds folders, as the orchestrator is to be told."""

    organization_id: str
    agent_id: str
    revision: int
    holds_folders: bool


def require_requests(requests: Sequence[FileRequest], limit: int) -> list[Window]:
    """Returns the windows of a request to open files.

    Raises:
        InvalidArgument: there are none, or more than the limit, or a window is not valid. Metadata: field, limit.
    """
    if not requests:
        raise InvalidArgument("No file requests provided", field="files")
    if len(requests) > limit:
        raise InvalidArgument(
            f"Cannot open {len(requests)} files: exceeds configured maximum limit of {limit} files",
            field="files",
            limit=str(limit),
        )
    return [request.window(f"files[{index}]") for index, request in enumerate(requests)]


def require_distinct(file_ids: Sequence[str]) -> None:
    """Raises InvalidArgument if a file is requested twice: an agent has one window into a file."""
    for index, file_id in enumerate(file_ids):
        first = file_ids.index(file_id)
        if first != index:
            raise InvalidArgument(
                f"files[{index}] is the same file as files[{first}]. A file has one window; request it once.",
                field=f"files[{index}]",
            )


def without_folder(name: str) -> str:
    return name.partition("/")[2]


def least_recent(open_files: Sequence[HeldFile], keep: int) -> list[HeldFile]:
    """Returns the files to close so that `keep` stay open, least recently used first."""
    ordered = sorted(open_files, key=lambda file: (file.used, file.file_id))
    return ordered[: max(0, len(ordered) - keep)]
