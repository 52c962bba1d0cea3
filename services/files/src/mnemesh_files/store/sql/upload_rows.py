"""The rows of unfinished uploads and their parts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.sql import Database

from mnemesh_files.errors import TooManyUploads, UploadNotFound
from mnemesh_files.model.files import FileHeader
from mnemesh_files.model.uploads import Upload, UploadPart
from mnemesh_files.store.sql import blob_rows
from mnemesh_files.store.sql.tables import blobs, request_ledger, upload_parts, uploads

EXPIRED_AT_ONCE = 100


def end(conn: sa.Connection, organization_id: str, upload_id: str, now: datetime) -> bool:
    """Deletes an upload and releases its parts. Returns whether it existed."""
    mine = sa.and_(upload_parts.c.organization_id == organization_id, upload_parts.c.upload_id == upload_id)
    for blob_id in conn.execute(sa.select(upload_parts.c.blob_id).where(mine)).scalars().all():
        blob_rows.release(conn, organization_id, blob_id, now, also_held=True)
    conn.execute(upload_parts.delete().where(mine))
    return bool(conn.execute(uploads.delete().where(_is_upload(organization_id, upload_id))).rowcount)


class SqlUploadStore:
    """See UploadStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(request_ledger, clock)

    async def start(self, organization_id: str, upload: Upload, limit: int, key: RequestKey | None) -> str:
        """See UploadStore.start."""
        unfinished = sa.and_(uploads.c.organization_id == organization_id, uploads.c.expires_at > upload.created_at)
        count = sa.select(sa.func.count()).select_from(uploads).where(unfinished)

        def write(conn: sa.Connection) -> str:
            def effect() -> list[str]:
                if conn.execute(count).scalar_one() >= limit:
                    raise TooManyUploads(limit)
                conn.execute(
                    uploads.insert().values(
                        organization_id=organization_id,
                        id=upload.id,
                        header=msgspec.json.encode(upload.header).decode(),
                        received_bytes=0,
                        created_at=upload.created_at,
                        expires_at=upload.expires_at,
                    )
                )
                return [upload.id]

            return self._requests.once(conn, key, effect)[0][0]

        return await self._database.write(write)

    async def get(self, organization_id: str, upload_id: str) -> Upload:
        """See UploadStore.get."""
        return await self._database.read(lambda conn: _upload(self._require(conn, organization_id, upload_id)))

    async def parts(self, organization_id: str, upload_id: str) -> list[UploadPart]:
        """See UploadStore.parts."""
        query = (
            sa.select(upload_parts.c.blob_id, upload_parts.c.offset, upload_parts.c.size_bytes)
            .where(upload_parts.c.organization_id == organization_id, upload_parts.c.upload_id == upload_id)
            .order_by(upload_parts.c.offset)
        )

        def read(conn: sa.Connection) -> list[UploadPart]:
            self._require(conn, organization_id, upload_id)
            return [UploadPart(*row) for row in conn.execute(query)]

        return await self._database.read(read)

    async def append(self, organization_id: str, upload_id: str, part: UploadPart, expires_at: datetime) -> bool:
        """See UploadStore.append."""

        def write(conn: sa.Connection) -> bool:
            row = self._require(conn, organization_id, upload_id)
            if row.received_bytes != part.offset:
                return False
            conn.execute(
                upload_parts.insert().values(
                    organization_id=organization_id,
                    upload_id=upload_id,
                    offset=part.offset,
                    size_bytes=part.size_bytes,
                    blob_id=part.blob_id,
                )
            )
            is_blob = sa.and_(blobs.c.organization_id == organization_id, blobs.c.id == part.blob_id)
            conn.execute(blobs.update().where(is_blob).values(size_bytes=part.size_bytes))
            received = {"received_bytes": part.offset + part.size_bytes, "expires_at": expires_at}
            conn.execute(uploads.update().where(_is_upload(organization_id, upload_id)).values(**received))
            return True

        return await self._database.write(write, name="uploads.append")

    async def cancel(self, organization_id: str, upload_id: str, key: RequestKey | None) -> None:
        """See UploadStore.cancel."""

        def write(conn: sa.Connection) -> None:
            def effect() -> list[str]:
                end(conn, organization_id, upload_id, self._clock.now())
                return []

            self._requests.once(conn, key, effect)

        await self._database.write(write)

    async def expire(self) -> int:
        """See UploadStore.expire."""

        def write(conn: sa.Connection) -> int:
            now = self._clock.now()
            query = sa.select(uploads.c.organization_id, uploads.c.id).where(uploads.c.expires_at <= now)
            found = conn.execute(query.limit(EXPIRED_AT_ONCE)).all()
            for row in found:
                end(conn, row.organization_id, row.id, now)
            return len(found)

        expired = count = await self._database.write(write)
        while count == EXPIRED_AT_ONCE:
            count = await self._database.write(write)
            expired += count
        return expired

    def _require(self, conn: sa.Connection, organization_id: str, upload_id: str) -> sa.Row[Any]:
        row = conn.execute(sa.select(uploads).where(_is_upload(organization_id, upload_id))).first()
        if row is None or row.expires_at <= self._clock.now():
            raise UploadNotFound(upload_id)
        return row


def _is_upload(organization_id: str, upload_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(uploads.c.organization_id == organization_id, uploads.c.id == upload_id)


def _upload(row: sa.Row[Any]) -> Upload:
    header = msgspec.json.decode(row.header, type=FileHeader)
    return Upload(row.id, header, row.received_bytes, row.created_at, row.expires_at)
