"""The files of agents, as prompts and tools show them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mnemesh_types.files import FileStatus
from mnemesh_types.messages import ImagePart

MAX_FILES_OPEN: Final = 1_000
MAX_VIEW_CHARACTERS: Final = 1_000_000
"""The largest limits that the files service accepts."""
MAX_PAGE: Final = 20
"""The number of matches that a call of grep_files returns."""

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types that the APIs of models accept."""
MAX_IMAGE_BYTES: Final = 3_750_000
"""The largest image of a tool return: 5 MB of base64, which every API accepts."""
MAX_RETURNED_IMAGES: Final = 5
"""The number of images that one call of a tool returns."""
MAX_SHOWN_IMAGES: Final = 20
"""The number of images of tool returns in a request. APIs reduce the size of images in requests with more."""
MAX_SHOWN_BYTES: Final = 12_000_000
"""The size of all images of tool returns in a request."""


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
    status: FileStatus = FileStatus.COMPLETED


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


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The content of an image in the files service."""

    media_type: str
    data: bytes


def returned_images(images: tuple[ImagePart | str, ...]) -> tuple[tuple[ImagePart, ...], tuple[str, ...]]:
    """Returns the images that a call may return, and notes about the others.

    Args:
        images: inline images, or images of files; and notes of the tool itself about further ones.
    """
    kept: list[ImagePart] = []
    notes: list[str] = []
    for image in images:
        problem = image if isinstance(image, str) else _problem(image, len(kept))
        if problem is not None:
            notes.append(problem)
        elif isinstance(image, ImagePart):
            kept.append(image)
    return tuple(kept), tuple(notes)


def refused_image(media_type: str, size: int) -> str | None:
    """Returns why an image is not shown to models, as a note for them; None if it can be shown."""
    if media_type not in IMAGE_TYPES:
        return f"[An image of type {media_type}, {size:,} bytes, is not shown: models read PNG, JPEG, GIF and WebP.]"
    if size > MAX_IMAGE_BYTES:
        return f"[An image of type {media_type}, {size:,} bytes, is not shown: it exceeds {MAX_IMAGE_BYTES:,} bytes.]"
    return None


def _problem(image: ImagePart, count: int) -> str | None:
    if image.data is not None and (problem := refused_image(image.media_type or "", len(image.data))) is not None:
        return problem
    if count >= MAX_RETURNED_IMAGES:
        return f"[An image is not shown: a tool call returns at most {MAX_RETURNED_IMAGES} images.]"
    return None
