"""The records of contents in the blob store."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from mnemesh_kit.errors import Aborted
from mnemesh_kit.sql import Database

from mnemesh_files.model.files import Content
from mnemesh_files.store.sql.tables import blobs, files, upload_parts


def use(conn: sa.Connection, organization_id: str, content: Content, now: datetime) -> Content:
    """Notes that a file refers to a stored content, or to an equal one that was stored before; returns that.

    The caller writes the reference in the same transaction. The first reference ends the hold, because no other upload
    can use a content before. The hold of a content that was referred to before stays: it may be that of another upload.

    Raises:
        Aborted: the content was removed, because the upload took longer than its hold.
    """
    shared = _shared(conn, organization_id, content.sha256)
    if shared is not None and shared != content.blob_id:
        release(conn, organization_id, content.blob_id, now, also_held=True)
        return Content(shared, content.size_bytes, content.sha256)
    mine = _usable(organization_id, content.blob_id)
    check_at = sa.case((blobs.c.stored, blobs.c.check_at), else_=None)
    stored = conn.execute(blobs.update().where(mine).values(stored=True, check_at=check_at))
    if not stored.rowcount:
        raise Aborted("The content was removed before the upload was finished. Upload it again.")
    return content


def release(
    conn: sa.Connection, organization_id: str, blob_id: str | None, now: datetime, *, also_held: bool = False
) -> None:
    """Makes the sweep check whether a content is still in use: now, or at the end of its hold unless `also_held`."""
    if blob_id is not None:
        held = sa.and_(blobs.c.check_at.is_not(None), blobs.c.check_at > now)
        mine = _usable(organization_id, blob_id)
        conn.execute(blobs.update().where(mine if also_held else sa.and_(mine, ~held)).values(check_at=now))


def release_unstored(conn: sa.Connection, organization_id: str, blob_id: str, now: datetime) -> None:
    """Makes the sweep remove a content that no file came to refer to. One that a file referred to is left alone."""
    unstored = sa.and_(_usable(organization_id, blob_id), ~blobs.c.stored)
    conn.execute(blobs.update().where(unstored).values(check_at=now))


class SqlBlobRecords:
    """See BlobRecords."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def shared(self, organization_id: str, sha256: str, hold_until: datetime) -> str | None:
        """See BlobRecords.shared."""

        def write(conn: sa.Connection) -> str | None:
            found = _shared(conn, organization_id, sha256)
            if found is not None:
                longer = sa.or_(blobs.c.check_at.is_(None), blobs.c.check_at < hold_until)
                mine = sa.and_(_usable(organization_id, found), longer)
                conn.execute(blobs.update().where(mine).values(check_at=hold_until))
            return found

        return await self._database.write(write)

    async def reserve(self, organization_id: str, blob_id: str, content_hash: str, size: int, until: datetime) -> None:
        """See BlobRecords.reserve."""
        row = {
            "organization_id": organization_id,
            "id": blob_id,
            "sha256": content_hash,
            "size_bytes": size,
            "stored": False,
            "check_at": until,
        }
        await self._database.write(lambda conn: conn.execute(blobs.insert(), row).rowcount)

    async def release_unstored(self, organization_id: str, blob_id: str, now: datetime) -> None:
        """See BlobRecords.release_unstored."""
        await self._database.write(lambda conn: release_unstored(conn, organization_id, blob_id, now))

    async def claim_unused(self, now: datetime, until: datetime, limit: int) -> list[tuple[str, str]]:
        """See BlobRecords.claim_unused."""
        due = sa.select(blobs.c.organization_id, blobs.c.id).where(blobs.c.check_at <= now)
        used = sa.or_(
            sa.exists().where(files.c.organization_id == blobs.c.organization_id, files.c.blob_id == blobs.c.id),
            sa.exists().where(
                upload_parts.c.organization_id == blobs.c.organization_id, upload_parts.c.blob_id == blobs.c.id
            ),
        )

        def write(conn: sa.Connection) -> list[tuple[str, str]]:
            claimed: list[tuple[str, str]] = []
            for row in conn.execute(due.add_columns(used.label("used")).limit(limit)).all():
                values = {"check_at": None} if row.used else {"check_at": until, "removing_at": now}
                mine = sa.and_(blobs.c.organization_id == row.organization_id, blobs.c.id == row.id)
                conn.execute(blobs.update().where(mine).values(**values))
                if not row.used:
                    claimed.append((row.organization_id, row.id))
            return claimed

        return await self._database.write(write)

    async def forget(self, organization_id: str, blob_id: str) -> None:
        """See BlobRecords.forget."""
        mine = sa.and_(blobs.c.organization_id == organization_id, blobs.c.id == blob_id)
        await self._database.write(lambda conn: conn.execute(blobs.delete().where(mine)).rowcount)


def _usable(organization_id: str, blob_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(blobs.c.organization_id == organization_id, blobs.c.id == blob_id, blobs.c.removing_at.is_(None))


def _shared(conn: sa.Connection, organization_id: str, sha256: str) -> str | None:
    query = sa.select(blobs.c.id).where(
        blobs.c.organization_id == organization_id,
        blobs.c.sha256 == sha256,
        blobs.c.stored,
        blobs.c.removing_at.is_(None),
    )
    return conn.execute(query.limit(1)).scalar()
