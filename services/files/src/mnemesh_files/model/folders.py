"""Folders: values and their validation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line, require_no_controls

from mnemesh_files.model.files import CLIENT_PROVENANCE, Provenance, valid_name, validate_provenance

MAX_TEXT_CHARS: Final = 10_000
MAX_METADATA_BYTES: Final = 100_000
MAX_HANDLE_CHARS: Final = 500
MAX_FILTER_IDS: Final = 1_000
DEFAULT_CHUNK_SIZE: Final = 300
CHUNK_SIZES: Final = range(32, 4_097)
UPDATABLE_FIELDS: Final = frozenset({"name", "description", "instructions", "metadata"}) | {
    f"provenance.{name}" for name in CLIENT_PROVENANCE
}


@dataclass(frozen=True, slots=True)
class Folder:
    """A named collection of files, with an archive of their passages."""

    id: str
    name: str
    description: str | None
    instructions: str | None
    metadata: str | None
    embedder: str
    """The handle of the embedder, as "provider/model"."""
    chunk_size: int
    """The maximum number of tokens of a passage."""
    archive_id: str
    created_at: datetime
    updated_at: datetime
    file_count: int = 0
    size_bytes: int = 0
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True)
class FolderDraft:
    """The values that a caller supplies to create or update a folder."""

    name: str = ""
    description: str | None = None
    instructions: str | None = None
    metadata: str | None = None
    embedder: str = ""
    """Empty for the default embedder of archival."""
    chunk_size: int = 0
    """0 for DEFAULT_CHUNK_SIZE."""
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True)
class FolderFilter:
    """A filter of folders. All conditions must hold; unset ones match every folder."""

    folder_ids: tuple[str, ...] = ()
    name: str | None = None
    name_search: str | None = None
    """A part of the name, in any case."""
    agent_id: str | None = None
    """The agent that holds the folders."""
    project_id: str | None = None
    template_id: str | None = None


class FolderOrder(Enum):
    """The orders of a list of folders."""

    CREATED = "created_at"
    UPDATED = "updated_at"
    NAME = "name"


def validated_draft(draft: FolderDraft) -> FolderDraft:
    """Returns the draft with its defaults and its name in NFC.

    Raises:
        InvalidArgument: a field has an invalid value.
    """
    validated = _validated_texts(draft, "folder")
    require_line(draft.embedder or "-", "folder.embedder", max_chars=MAX_HANDLE_CHARS)
    chunk_size = draft.chunk_size or DEFAULT_CHUNK_SIZE
    if chunk_size not in CHUNK_SIZES:
        raise InvalidArgument(
            f"folder.chunk_size must be from {CHUNK_SIZES[0]} to {CHUNK_SIZES[-1]} tokens, or 0 for the default.",
            field="folder.chunk_size",
        )
    name = valid_name(draft.name, "folder.name")
    return FolderDraft(
        name, validated.description, draft.instructions, draft.metadata, draft.embedder, chunk_size, draft.provenance
    )


def validated_update(draft: FolderDraft, fields: Collection[str]) -> FolderDraft:
    """Returns the values of an update, with the name in NFC.

    Raises:
        InvalidArgument: the mask is empty or names a field that cannot be updated, or a value is invalid.
    """
    if not fields or not UPDATABLE_FIELDS.issuperset(fields):
        names = ", ".join(sorted(UPDATABLE_FIELDS))
        raise InvalidArgument(f"update_mask must name one or more of {names}.", field="update_mask")
    _validated_texts(draft, "folder")
    name = valid_name(draft.name, "folder.name") if "name" in fields else ""
    return FolderDraft(name, draft.description, draft.instructions, draft.metadata, provenance=draft.provenance)


def validate_filter(filter_: FolderFilter) -> None:
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


def _validated_texts(draft: FolderDraft, field_: str) -> FolderDraft:
    for name in ("description", "instructions"):
        value = getattr(draft, name)
        if value is not None:
            require_no_controls(value, f"{field_}.{name}", max_chars=MAX_TEXT_CHARS)
    if draft.metadata is not None:
        require_json_object(draft.metadata, f"{field_}.metadata", max_bytes=MAX_METADATA_BYTES)
    validate_provenance(draft.provenance, f"{field_}.provenance")
    return draft
