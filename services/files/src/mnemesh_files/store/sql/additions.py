"""Adds files to folders, as the handling of duplicates says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from mnemesh_files.errors import FileNameTaken
from mnemesh_files.model.files import Content, DuplicateHandling, FileHeader, FileStatus, UploadOutcome
from mnemesh_files.store.sql import blob_rows, folder_rows, holders
from mnemesh_files.store.sql import file_rows as rows
from mnemesh_files.store.sql.tables import files


@dataclass(frozen=True, slots=True)
class Addition:
    """A file to be added."""

    organization_id: str
    file_id: str
    """The id of the file if it is a new one."""
    header: FileHeader
    source: Content | str
    """The content, or the URL from which it will be downloaded."""
    subject_id: str
    now: datetime


def add_file(conn: sa.Connection, addition: Addition) -> tuple[str, UploadOutcome]:
    """Adds a file to its folder; returns its id and what happened.

    Raises:
        FolderNotFound: the folder does not exist.
        FileNameTaken: the name is taken, and that is an error.
    """
    organization_id, header = addition.organization_id, addition.header
    folder_rows.require(conn, organization_id, header.folder_id)
    name = header.name or header.original_name
    existing = rows.named(conn, organization_id, header.folder_id, name)
    if existing is not None:
        match header.duplicate_handling:
            case DuplicateHandling.SKIP:
                _leave(conn, addition)
                return existing.id, UploadOutcome.SKIPPED
            case DuplicateHandling.ERROR:
                raise FileNameTaken(name, existing.id)
            case DuplicateHandling.REPLACE:
                _replace(conn, addition, existing)
                return existing.id, UploadOutcome.REPLACED
            case DuplicateHandling.SUFFIX:
                name = rows.free_name(conn, organization_id, header.folder_id, name)
    values = rows.described(header) | _sourced(conn, addition)
    rows.insert(conn, organization_id, addition.file_id, name, values, addition.subject_id, addition.now)
    folder_rows.count(conn, organization_id, header.folder_id, addition.now, 1, values["size_bytes"])
    return addition.file_id, UploadOutcome.CREATED


def _sourced(conn: sa.Connection, addition: Addition) -> dict[str, Any]:
    """Returns the values that the source gives to a file."""
    if isinstance(addition.source, Content):
        return rows.with_content(blob_rows.use(conn, addition.organization_id, addition.source, addition.now))
    return {**rows.UNPARSED, "size_bytes": 0, "sha256": "", "blob_id": None, **_to_fetch(addition)}


def _leave(conn: sa.Connection, addition: Addition) -> None:
    """Makes the sweep remove the new content, which the file does not need."""
    if isinstance(addition.source, Content):
        blob_rows.release_unstored(conn, addition.organization_id, addition.source.blob_id, addition.now)


def _to_fetch(addition: Addition) -> dict[str, Any]:
    header = addition.header
    expected = {"size_bytes": header.size_bytes, "sha256": header.sha256}
    return {
        "status": FileStatus.FETCHING,
        "error_message": None,
        "source_url": addition.source,
        "expected": msgspec.json.encode(expected).decode(),
    }


def _replace(conn: sa.Connection, addition: Addition, existing: sa.Row[Any]) -> None:
    """Gives a file another header and content.

    An equal content is not processed again. A file keeps its content until another one is downloaded.
    """
    organization_id, now, header = addition.organization_id, addition.now, addition.header
    values = rows.described(header) | {
        "names_folded": rows.folded(existing.name, header.original_name),
        "updated_at": now,
        "last_updated_by_id": addition.subject_id,
    }
    work = {"due_at": now, "claim": existing.claim + 1, "failures": 0, "next_text_id": None, "next_text": None}
    if not isinstance(addition.source, Content):
        values |= _to_fetch(addition) | work
    elif existing.sha256 != addition.source.sha256 or existing.blob_id is None or existing.expected is not None:
        values |= _sourced(conn, addition) | work | {"source_url": None, "revision": existing.revision + 1}
        if existing.blob_id != values["blob_id"]:
            blob_rows.release(conn, organization_id, existing.blob_id, now)
        holders.restart_windows(conn, organization_id, existing.id, now)
    else:
        _leave(conn, addition)
        values["source_url"] = None
        if header.media_type is None:
            values |= {"media_type": existing.media_type, "media_type_given": existing.media_type_given}
    conn.execute(files.update().where(rows.is_file(organization_id, existing.id)).values(**values))
    by = values.get("size_bytes", existing.size_bytes) - existing.size_bytes
    folder_rows.count(conn, organization_id, existing.folder_id, now, 0, by)
