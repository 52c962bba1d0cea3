"""Folders: values and their validation."""

from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line, require_no_controls
from mnemesh_types.files import Folder, FolderFilter

from mnemesh_files.model.files import CLIENT_PROVENANCE, valid_name, validate_provenance

MAX_TEXT_CHARS: Final = 10_000
MAX_METADATA_BYTES: Final = 100_000
MAX_HANDLE_CHARS: Final = 500
MAX_FILTER_IDS: Final = 1_000
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


def _validate_texts(draft: Folder, field_: str) -> None:
    for name in ("description", "instructions"):
        value = getattr(draft, name)
        if value is not None:
            require_no_controls(value, f"{field_}.{name}", max_chars=MAX_TEXT_CHARS)
    if draft.metadata is not None:
        require_json_object(draft.metadata, f"{field_}.metadata", max_bytes=MAX_METADATA_BYTES)
    validate_provenance(draft.provenance, f"{field_}.provenance")
