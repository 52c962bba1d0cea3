"""The folders and files that agents hold, and requests to open and close files."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.files import FileLimits, FileStatus, FileView, Folder

from mnemesh_files.model.windows import DEFAULT_LIMITS, ViewStyle, Window, window_of

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
