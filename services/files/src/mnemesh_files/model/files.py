"""Files: values, filters and their validation."""

from __future__ import annotations

import mimetypes
import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line

from mnemesh_files.errors import ContentMismatch
from mnemesh_files.model.names import valid_name, without_directories
from mnemesh_files.model.provenance import Provenance

MAX_FILTER_IDS: Final = 1_000
MAX_FILTER_CHARS: Final = 500
MAX_PATH_CHARS: Final = 4_096
MAX_METADATA_BYTES: Final = 100_000
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class FileStatus(StrEnum):
    """The processing status of a file; see the contract."""

    FETCHING = "fetching"
    PENDING = "pending"
    PARSING = "parsing"
    EMBEDDING = "embedding"
    COMPLETED = "completed"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class File:
    """A file of a folder."""

    id: str
    folder_id: str
    name: str
    """Unique in the folder."""
    original_name: str
    media_type: str
    size_bytes: int
    sha256: str
    """In lower-case hexadecimal; empty before an import has the content."""
    status: FileStatus
    created_at: datetime
    updated_at: datetime
    error_message: str | None = None
    total_chunks: int | None = None
    chunks_embedded: int | None = None
    total_lines: int | None = None
    total_chars: int | None = None
    total_pages: int | None = None
    warnings: tuple[str, ...] = ()
    path: str | None = None
    original_created_at: datetime | None = None
    original_updated_at: datetime | None = None
    metadata: str | None = None
    revision: int = 1
    source_url: str | None = None
    media_type_given: bool = False
    """Whether the client gave the type; then detection does not change it."""
    blob_id: str | None = None
    """The content in the blob store; None before an import has it."""
    text_id: str | None = None
    """The parsed text that views show; None if there is none. Agents can open the file if it is set."""
    searchable: bool = False
    """Whether the passages of `text_id` are in the archive."""
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True)
class TextPart:
    """Lines of a parsed text."""

    lines: tuple[str, ...]
    first: int
    """The number of the first of them, from 1."""
    total: int
    """The number of lines of the text."""
    page_starts: tuple[int, ...] = ()
    """The first line of each page of the text."""

    @property
    def last(self) -> int:
        """The number of the last of the lines."""
        return self.first + len(self.lines) - 1

    def page(self, line: int) -> int | None:
        """Returns the page of a line, both from 1; None for a file without pages."""
        return max(1, bisect_right(self.page_starts, line)) if self.page_starts else None


class DuplicateHandling(Enum):
    """What an upload does if the folder has a file with the name."""

    SKIP = "skip"
    ERROR = "error"
    SUFFIX = "suffix"
    REPLACE = "replace"


class UploadOutcome(StrEnum):
    """What an upload did."""

    CREATED = "created"
    SKIPPED = "skipped"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a client says of a file."""

    folder_id: str
    original_name: str
    name: str | None = None
    """None: the original name."""
    media_type: str | None = None
    """None: detected."""
    duplicate_handling: DuplicateHandling = DuplicateHandling.SUFFIX
    size_bytes: int | None = None
    sha256: str | None = None
    path: str | None = None
    original_created_at: datetime | None = None
    original_updated_at: datetime | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file, in the blob store."""

    blob_id: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileFilter:
    """A filter of files. All conditions must hold; unset ones match every file."""

    file_ids: tuple[str, ...] = ()
    folder_id: str | None = None
    name: str | None = None
    name_search: str | None = None
    """A part of the name or the original name, in any case."""
    statuses: tuple[FileStatus, ...] = ()
    agent_id: str | None = None
    """The agent that holds the files."""


class FileOrder(Enum):
    """The orders of a list of files."""

    CREATED = "created_at"
    UPDATED = "updated_at"
    NAME = "name"


def validated_header(header: FileHeader, field_: str = "header") -> FileHeader:
    """Returns a header with its names without directories and in NFC, and its name set.

    Raises:
        InvalidArgument: a value is invalid.
    """
    original = valid_name(without_directories(header.original_name), f"{field_}.original_name")
    name = original if header.name is None else valid_name(header.name, f"{field_}.name")
    if header.media_type is not None and not _MEDIA_TYPE.fullmatch(header.media_type):
        raise InvalidArgument(
            f'{field_}.media_type must be a media type such as "text/markdown".', field=f"{field_}.media_type"
        )
    if header.size_bytes is not None and header.size_bytes < 0:
        raise InvalidArgument(f"{field_}.size_bytes must not be negative.", field=f"{field_}.size_bytes")
    if header.sha256 is not None and not _SHA256.fullmatch(header.sha256):
        raise InvalidArgument(
            f"{field_}.sha256 must be a SHA-256 in lower-case hexadecimal, 64 digits.", field=f"{field_}.sha256"
        )
    if header.path is not None:
        require_line(header.path, f"{field_}.path", max_chars=MAX_PATH_CHARS)
    if header.metadata is not None:
        require_json_object(header.metadata, f"{field_}.metadata", max_bytes=MAX_METADATA_BYTES)
    return replace(header, original_name=original, name=name)


def verify_content(header: FileHeader, size_bytes: int, sha256: str, field_: str = "header") -> None:
    """Compares a content with what its header says.

    Raises:
        ContentMismatch: the size or the hash is another.
    """
    if header.size_bytes is not None and header.size_bytes != size_bytes:
        raise ContentMismatch(
            f"The content has {size_bytes:,} bytes, but {field_}.size_bytes is {header.size_bytes:,}. Send it again.",
            field=f"{field_}.size_bytes",
            size_bytes=str(size_bytes),
        )
    if header.sha256 is not None and header.sha256 != sha256:
        raise ContentMismatch(
            f"The content does not have the hash in {field_}.sha256. Send it again.",
            field=f"{field_}.sha256",
            sha256=sha256,
        )


def media_type_of(name: str) -> str:
    """Returns the media type that the ending of a name suggests."""
    return mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream"


def validate_filter(filter_: FileFilter) -> None:
    """Checks the limits of a filter.

    Raises:
        InvalidArgument: there are too many ids, or a name is blank, too long, or has control characters.
    """
    if len(filter_.file_ids) > MAX_FILTER_IDS:
        raise InvalidArgument(f"filter.file_ids must have at most {MAX_FILTER_IDS:,} values.", field="filter.file_ids")
    for name in ("name", "name_search"):
        value = getattr(filter_, name)
        if value is not None:
            require_line(value, f"filter.{name}", max_chars=MAX_FILTER_CHARS)
