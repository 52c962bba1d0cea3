"""Files and folders: filters, limits and validation."""

import mimetypes
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line, require_no_controls
from mnemesh_types import files
from mnemesh_types.files import FileFilter, FileHeader, Folder, FolderFilter
from mnemesh_types.provenance import Provenance

from mnemesh_files.errors import ContentMismatch

MAX_NAME_CHARS: Final = 255
_SEPARATORS: Final = re.compile(r"[/\\]")
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Joiners are letters' shapes in Persian, Indic scripts and emoji. They do not change the direction of a text.
_JOINERS: Final = frozenset("\u200c\u200d")

MAX_ID_CHARS: Final = 500

MAX_FILTER_IDS: Final = 1_000
MAX_FILTER_CHARS: Final = 500
MAX_PATH_CHARS: Final = 4_096
MAX_METADATA_BYTES: Final = 100_000
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

LIFETIME: Final = timedelta(days=1)
"""How long the data of an upload is kept after the last write."""


def valid_name(name: str, field: str) -> str:
    """Returns a name in NFC, without white space at its ends.

    Raises:
        InvalidArgument: it is blank, too long, "." or "..", or has a path separator, a control character, or another
            character that is invisible or changes the direction of text.
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise InvalidArgument(f"{field} must not be blank.", field=field)
    if len(name) > MAX_NAME_CHARS:
        raise InvalidArgument(f"{field} must be at most {MAX_NAME_CHARS} characters.", field=field)
    if name in (".", ".."):
        raise InvalidArgument(f'{field} must not be "." or "..".', field=field)
    if _SEPARATORS.search(name):
        raise InvalidArgument(f'{field} must not contain "/" or "\\".', field=field)
    for char in name:
        if unicodedata.category(char) in _REFUSED_CATEGORIES and char not in _JOINERS:
            raise InvalidArgument(
                f"{field} must not contain the character U+{ord(char):04X}, which is invisible or a control character.",
                field=field,
            )
    return name


def without_directories(name: str) -> str:
    """Returns the last part of a path of a client, of any operating system."""
    return _SEPARATORS.split(name.rstrip("/\\"))[-1]


def suffixed(name: str, number: int) -> str:
    """Returns the name of a duplicate: `name_(1).txt`. The stem is cut if the name would be too long."""
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension) > 20:
        stem, dot, extension = name, "", ""
    ending = f"_({number}){dot}{extension}"
    return stem[: MAX_NAME_CHARS - len(ending)] + ending


PROVENANCE: Final = tuple(each.name for each in fields(Provenance))
"""The fields of `Provenance`, which are columns of the tables of folders and files."""
CLIENT_PROVENANCE: Final = PROVENANCE[2:]
"""The fields that clients set."""


def validate_provenance(provenance: Provenance, field: str) -> None:
    """Checks the ids that clients set.

    Raises:
        InvalidArgument: one is blank, too long, or has control characters.
    """
    for name in CLIENT_PROVENANCE:
        value = getattr(provenance, name)
        if value is not None:
            require_line(value, f"{field}.{name}", max_chars=MAX_ID_CHARS)


@dataclass(frozen=True, slots=True)
class File(files.File):
    """A file of a folder, with what callers do not see."""

    media_type_given: bool = False
    """Whether the client gave the type; then detection does not change it."""
    blob_id: str | None = None
    """The content in the blob store; None before an import has it."""
    text_id: str | None = None
    """The parsed text that views show; None if there is none. Agents can open the file if it is set."""
    searchable: bool = False
    """Whether the passages of `text_id` are in the archive."""


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


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file, in the blob store."""

    blob_id: str
    size_bytes: int
    sha256: str


class FileOrder(Enum):
    """The orders of a list of files."""

    CREATED = "created_at"
    UPDATED = "updated_at"
    NAME = "name"


def validated_header(header: FileHeader) -> FileHeader:
    """Returns a header with its names without directories and in NFC, and its name set.

    Raises:
        InvalidArgument: a value is invalid.
    """
    original = valid_name(without_directories(header.original_name), "header.original_name")
    name = original if header.name is None else valid_name(header.name, "header.name")
    if header.media_type is not None and not _MEDIA_TYPE.fullmatch(header.media_type):
        raise InvalidArgument(
            'header.media_type must be a media type such as "text/markdown".', field="header.media_type"
        )
    if header.size_bytes is not None and header.size_bytes < 0:
        raise InvalidArgument("header.size_bytes must not be negative.", field="header.size_bytes")
    if header.sha256 is not None and not _SHA256.fullmatch(header.sha256):
        raise InvalidArgument(
            "header.sha256 must be a SHA-256 in lower-case hexadecimal, 64 digits.", field="header.sha256"
        )
    if header.path is not None:
        require_line(header.path, "header.path", max_chars=MAX_PATH_CHARS)
    if header.metadata is not None:
        require_json_object(header.metadata, "header.metadata", max_bytes=MAX_METADATA_BYTES)
    return replace(header, original_name=original, name=name)


def verify_content(header: FileHeader, size_bytes: int, sha256: str) -> None:
    """Compares a content with what its header says.

    Raises:
        ContentMismatch: the size or the hash is another.
    """
    if header.size_bytes is not None and header.size_bytes != size_bytes:
        raise ContentMismatch(
            f"The content has {size_bytes:,} bytes, but header.size_bytes is {header.size_bytes:,}. Send it again.",
            field="header.size_bytes",
            size_bytes=str(size_bytes),
        )
    if header.sha256 is not None and header.sha256 != sha256:
        raise ContentMismatch(
            "The content does not have the hash in header.sha256. Send it again.",
            field="header.sha256",
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


@dataclass(frozen=True, slots=True)
class UploadPart:
    """Data of an upload, in the blob store."""

    blob_id: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """The claim of a worker on a file."""

    organization_id: str
    file: File
    archive_id: str
    """The archive of the folder."""
    chunk_size: int
    claim: int
    """The number of the claim. Later claims have greater numbers; writes of earlier ones are refused."""
    failures: int
    """The claims in a row, with this one, that ended without progress."""
    next_text_id: str | None
    """A text that an earlier claim has stored, whose passages are not all embedded."""
    next_text: Mapping[str, Any]
    """What is known about that text; see ParsedText.facts."""
    expected_size: int | None
    """What a download must have."""
    expected_sha256: str | None


@dataclass(frozen=True, slots=True)
class ParsedText:
    id: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    """The values of the columns of a file that describe its text."""
    media_type: str


@dataclass(frozen=True, slots=True)
class FilePassage:
    """A passage of a text."""

    position: int
    passage_id: str
    text_hash: str
    start_line: int
    end_line: int
    embedded: bool
    """Whether the archive has it."""


def planned_passages(fresh: Sequence[FilePassage], known: Sequence[FilePassage]) -> tuple[FilePassage, ...]:
    """Returns the passages of a text, of which those with an equal text take over a known passage that is embedded.

    Args:
        fresh: the passages, none of them embedded.
        known: the passages of earlier texts of the file.
    """
    by_hash: dict[str, list[str]] = {}
    for passage in known:
        ids = by_hash.setdefault(passage.text_hash, [])
        if passage.embedded and passage.passage_id not in ids:
            ids.append(passage.passage_id)
    planned = []
    for passage in fresh:
        ids = by_hash.get(passage.text_hash, [])
        taken = ids.pop(0) if ids else None
        planned.append(
            FilePassage(
                passage.position,
                taken or passage.passage_id,
                passage.text_hash,
                passage.start_line,
                passage.end_line,
                embedded=taken is not None,
            )
        )
    return tuple(planned)


MAX_TEXT_CHARS: Final = 10_000
MAX_HANDLE_CHARS: Final = 500
DEFAULT_CHUNK_SIZE: Final = 300
CHUNK_SIZES: Final = range(32, 4_097)
UPDATABLE_FIELDS: Final = frozenset({"name", "description", "instructions", "metadata"}) | {
    f"provenance.{name}" for name in CLIENT_PROVENANCE
}


class FolderOrder(Enum):
    """The orders of a list of folders."""

    CREATED = "created_at"
    UPDATED = "updated_at"
    NAME = "name"


def validated_draft(draft: Folder) -> Folder:
    """Returns the draft with its defaults and its name in NFC.

    Raises:
        InvalidArgument: a field has an invalid value.
    """
    _validate_texts(draft, "folder")
    require_line(draft.embedder or "-", "folder.embedder", max_chars=MAX_HANDLE_CHARS)
    chunk_size = draft.chunk_size or DEFAULT_CHUNK_SIZE
    if chunk_size not in CHUNK_SIZES:
        raise InvalidArgument(
            f"folder.chunk_size must be from {CHUNK_SIZES[0]} to {CHUNK_SIZES[-1]} tokens, or 0 for the default.",
            field="folder.chunk_size",
        )
    name = valid_name(draft.name, "folder.name")
    return replace(draft, name=name, chunk_size=chunk_size)


def validated_update(draft: Folder, fields: Collection[str]) -> Folder:
    """Returns the values of an update, with the name in NFC.

    Raises:
        InvalidArgument: the mask is empty or names a field that cannot be updated, or a value is invalid.
    """
    if not fields or not UPDATABLE_FIELDS.issuperset(fields):
        names = ", ".join(sorted(UPDATABLE_FIELDS))
        raise InvalidArgument(f"update_mask must name one or more of {names}.", field="update_mask")
    _validate_texts(draft, "folder")
    name = valid_name(draft.name, "folder.name") if "name" in fields else ""
    return replace(draft, name=name)


def validate_folder_filter(filter_: FolderFilter) -> None:
    """Checks the limits of a filter.

    Raises:
        InvalidArgument: there are too many ids, or a text is blank, too long, or has control characters.
    """
    if len(filter_.folder_ids) > MAX_FILTER_IDS:
        raise InvalidArgument(
            f"filter.folder_ids must have at most {MAX_FILTER_IDS:,} values.", field="filter.folder_ids"
        )
    for name in ("name", "name_search", "project_id", "template_id"):
        value = getattr(filter_, name)
        if value is not None:
            require_line(value, f"filter.{name}", max_chars=MAX_HANDLE_CHARS)


def _validate_texts(draft: Folder, field_: str) -> None:
    for name in ("description", "instructions"):
        value = getattr(draft, name)
        if value is not None:
            require_no_controls(value, f"{field_}.{name}", max_chars=MAX_TEXT_CHARS)
    if draft.metadata is not None:
        require_json_object(draft.metadata, f"{field_}.metadata", max_bytes=MAX_METADATA_BYTES)
    validate_provenance(draft.provenance, f"{field_}.provenance")
