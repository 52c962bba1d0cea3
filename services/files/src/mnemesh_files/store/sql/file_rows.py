"""The rows of files: reading, insertion, new contents, and tombstones."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from mnemesh_files.errors import FileNotFound
from mnemesh_files.model.files import Content, File, FileHeader, FileStatus, media_type_of
from mnemesh_files.model.names import suffixed
from mnemesh_files.model.provenance import PROVENANCE, Provenance
from mnemesh_files.store.sql import blob_rows, holders, removal_rows
from mnemesh_files.store.sql.removal_rows import RemovalKind
from mnemesh_files.store.sql.tables import files

AFTER_LEASE: Final = timedelta(minutes=1)
"""An insertion into the archive that began within a lease has ended then."""
_VALUES: Final = (
    *("id", "folder_id", "name", "original_name", "media_type", "media_type_given", "size_bytes", "sha256"),
    *("created_at", "updated_at", "error_message", "total_chunks", "chunks_embedded", "total_lines", "total_chars"),
    *("total_pages", "path", "original_created_at", "original_updated_at", "metadata", "revision", "source_url"),
    *("blob_id", "text_id", "searchable"),
)
UNPARSED: Final[dict[str, Any]] = dict.fromkeys(
    (
        *("error_message", "text_id", "total_chunks", "chunks_embedded", "total_lines", "total_chars", "total_pages"),
        *("page_starts", "warnings", "kind", "language", "next_text_id", "next_text"),
    )
) | {"searchable": False}
"""The values of a file whose content is not parsed."""
_LIVE = sa.select(files).where(
    files.c.organization_id == sa.bindparam("org"), files.c.id == sa.bindparam("file"), files.c.deleted_at.is_(None)
)
_NAMED = sa.select(files).where(
    files.c.organization_id == sa.bindparam("org"),
    files.c.folder_id == sa.bindparam("folder"),
    files.c.name == sa.bindparam("name"),
    files.c.deleted_at.is_(None),
)


def is_file(organization_id: str, file_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects a file, deleted or not."""
    return sa.and_(files.c.organization_id == organization_id, files.c.id == file_id)


def live(organization_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the files of an organization that are not deleted."""
    return sa.and_(files.c.organization_id == organization_id, files.c.deleted_at.is_(None))


def require(conn: sa.Connection, organization_id: str, file_id: str) -> sa.Row[Any]:
    """Returns the row of a file. Raises FileNotFound if it does not exist or is deleted."""
    row = conn.execute(_LIVE, {"org": organization_id, "file": file_id}).first()
    if row is None:
        raise FileNotFound(file_id)
    return row


def named(conn: sa.Connection, organization_id: str, folder_id: str, name: str) -> sa.Row[Any] | None:
    """Returns the row of the file with a name in a folder."""
    return conn.execute(_NAMED, {"org": organization_id, "folder": folder_id, "name": name}).first()


def file_from_row(row: sa.Row[Any]) -> File:
    """Returns the file of a row."""
    return File(
        **{name: getattr(row, name) for name in _VALUES},
        status=FileStatus(row.status),
        warnings=tuple(msgspec.json.decode(row.warnings)) if row.warnings else (),
        provenance=Provenance(**{name: getattr(row, name) for name in PROVENANCE}),
    )


def free_name(conn: sa.Connection, organization_id: str, folder_id: str, name: str) -> str:
    """Returns the name, or with the smallest number above those in use, as in "name_(2).txt"."""
    if named(conn, organization_id, folder_id, name) is None:
        return name
    # Every suffixed name has the stem and the ending of this one.
    head, _, tail = suffixed(name, 1).rpartition("_(1)")
    query = sa.select(files.c.name).where(
        live(organization_id),
        files.c.folder_id == folder_id,
        files.c.name.startswith(f"{head}_(", autoescape=True),
        files.c.name.endswith(f"){tail}", autoescape=True),
    )
    used = [taken.removeprefix(f"{head}_(").removesuffix(f"){tail}") for taken in conn.execute(query).scalars()]
    number = max((int(each) for each in used if each.isascii() and each.isdigit() and len(each) < 10), default=0)
    while True:
        number += 1
        candidate = suffixed(name, number)
        if named(conn, organization_id, folder_id, candidate) is None:
            return candidate


def insert(
    conn: sa.Connection,
    organization_id: str,
    file_id: str,
    name: str,
    values: dict[str, Any],
    subject_id: str,
    now: datetime,
) -> None:
    """Inserts a new file; `values` are those of `described` and of `with_content` or of an import."""
    conn.execute(
        files.insert().values(
            organization_id=organization_id,
            id=file_id,
            name=name,
            names_folded=folded(name, values["original_name"]),
            created_at=now,
            updated_at=now,
            due_at=now,
            created_by_id=subject_id,
            last_updated_by_id=subject_id,
            **values,
        )
    )


def described(header: FileHeader) -> dict[str, Any]:
    """Returns the values that a header gives to a file."""
    return {
        "folder_id": header.folder_id,
        "original_name": header.original_name,
        "media_type": header.media_type or media_type_of(header.original_name),
        "media_type_given": header.media_type is not None,
        "path": header.path,
        "original_created_at": header.original_created_at,
        "original_updated_at": header.original_updated_at,
        "metadata": header.metadata,
    }


def with_content(content: Content) -> dict[str, Any]:
    """Returns the values of a file with a content that is not parsed."""
    return {
        **UNPARSED,
        "size_bytes": content.size_bytes,
        "sha256": content.sha256,
        "blob_id": content.blob_id,
        "status": FileStatus.PENDING,
        "expected": None,
    }


def folded(name: str, original_name: str) -> str:
    """Returns what searches by name look at."""
    return f"{name}\n{original_name}".casefold()


def bury(conn: sa.Connection, organization_id: str, row: sa.Row[Any], now: datetime) -> None:
    """Replaces a file by a tombstone, and records the removal of its passages, text and content."""
    blob_rows.release(conn, organization_id, row.blob_id, now)
    holders.forget_files(conn, organization_id, [row.id])
    conn.execute(files.update().where(is_file(organization_id, row.id)).values(**_BURIED, deleted_at=now))
    _add_removal(conn, organization_id, row, now)


def bury_all(conn: sa.Connection, organization_id: str, folder_id: str, now: datetime) -> None:
    """Replaces the files of a folder by tombstones, and records the removal of what they have."""
    mine = sa.and_(live(organization_id), files.c.folder_id == folder_id)
    columns = (files.c.id, files.c.blob_id, files.c.folder_id, files.c.due_at)
    for row in conn.execute(sa.select(*columns).where(mine)).all():
        blob_rows.release(conn, organization_id, row.blob_id, now)
        _add_removal(conn, organization_id, row, now)
    conn.execute(files.update().where(mine).values(**_BURIED, deleted_at=now))


def _add_removal(conn: sa.Connection, organization_id: str, row: Any, now: datetime) -> None:
    """Records the removal of a file: after the lease of its worker, which may be inserting passages."""
    leased = row.due_at is not None and row.due_at > now
    due_at = row.due_at + AFTER_LEASE if leased else now
    removal_rows.add(conn, organization_id, RemovalKind.FILE, row.id, due_at, folder_id=row.folder_id)


_BURIED: Final[dict[str, Any]] = {
    **UNPARSED,
    **dict.fromkeys(("due_at", "blob_id", "path", "metadata", "source_url", "expected")),
    **dict.fromkeys(("name", "names_folded", "original_name", "sha256", "media_type"), ""),
    "size_bytes": 0,
}
