"""The rows of folders: reading, the counters and the revision, and tombstones."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql.rows import Rows
from mnemesh_types.files import Folder

from mnemesh_files.errors import FolderNameTaken, FolderNotFound
from mnemesh_files.store.tables import folders

ROWS: Final = Rows(folders, Folder, inline=("provenance",))
_LIVE = sa.select(folders).where(
    folders.c.organization_id == sa.bindparam("org"),
    folders.c.id == sa.bindparam("folder"),
    folders.c.deleted_at.is_(None),
)
_COUNT = (
    folders.update()
    .where(folders.c.organization_id == sa.bindparam("org"), folders.c.id == sa.bindparam("folder"))
    .values(
        file_count=folders.c.file_count + sa.bindparam("files_by"),
        size_bytes=folders.c.size_bytes + sa.bindparam("bytes_by"),
        revision=folders.c.revision + 1,
        changed_at=sa.bindparam("now"),
    )
)


def is_folder(organization_id: str, folder_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects a folder, deleted or not."""
    return sa.and_(folders.c.organization_id == organization_id, folders.c.id == folder_id)


def live(organization_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the folders of an organization that are not deleted."""
    return sa.and_(folders.c.organization_id == organization_id, folders.c.deleted_at.is_(None))


def require(conn: sa.Connection, organization_id: str, folder_id: str) -> sa.Row[Any]:
    """Returns the row of a folder. Raises FolderNotFound if it does not exist or is deleted."""
    row = conn.execute(_LIVE, {"org": organization_id, "folder": folder_id}).first()
    if row is None:
        raise FolderNotFound(folder_id)
    return row


def require_free_name(conn: sa.Connection, organization_id: str, name: str, folder_id: str) -> None:
    """Raises FolderNameTaken if another folder has the name."""
    query = sa.select(folders.c.id).where(live(organization_id), folders.c.name == name, folders.c.id != folder_id)
    if conn.execute(query).first() is not None:
        raise FolderNameTaken(name)


def insert(conn: sa.Connection, organization_id: str, folder: Folder) -> None:
    """Inserts a new, empty folder."""
    row = ROWS.to_row(
        folder, organization_id=organization_id, name_folded=folder.name.casefold(), changed_at=folder.created_at
    )
    conn.execute(folders.insert().values(row))


def count(
    conn: sa.Connection, organization_id: str, folder_id: str, now: datetime, files_by: int = 0, bytes_by: int = 0
) -> None:
    """Adds to the counters of a folder, and raises its revision. With no numbers, a file in it has changed."""
    conn.execute(
        _COUNT,
        {"org": organization_id, "folder": folder_id, "files_by": files_by, "bytes_by": bytes_by, "now": now},
    )


def bury(conn: sa.Connection, organization_id: str, folder_id: str, now: datetime) -> None:
    """Replaces a folder by a tombstone, which has nothing of the content."""
    conn.execute(
        folders.update()
        .where(is_folder(organization_id, folder_id))
        .values(
            deleted_at=now,
            name="",
            name_folded="",
            description=None,
            instructions=None,
            metadata=None,
            file_count=0,
            size_bytes=0,
        )
    )
