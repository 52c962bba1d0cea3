"""The store of files in SQL."""

from __future__ import annotations

from typing import Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate

from mnemesh_files.errors import FileNotFound, FileNotParsed, UploadNotFound
from mnemesh_files.model.files import (
    Content,
    File,
    FileFilter,
    FileHeader,
    FileOrder,
    FileStatus,
    TextPart,
    UploadOutcome,
)
from mnemesh_files.store.sql import file_rows as rows
from mnemesh_files.store.sql import folder_rows, holders, text_rows, upload_rows
from mnemesh_files.store.sql.additions import Addition, add_file
from mnemesh_files.store.sql.tables import files, request_ledger

_ORDERS: Final = {
    FileOrder.CREATED: files.c.created_at,
    FileOrder.UPDATED: files.c.updated_at,
    FileOrder.NAME: files.c.name,
}


class SqlFileStore:
    """See FileStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(request_ledger, clock)

    async def add(
        self,
        organization_id: str,
        file_id: str,
        header: FileHeader,
        source: Content | str,
        subject_id: str,
        key: RequestKey | None,
        *,
        upload_id: str | None = None,
    ) -> tuple[str, UploadOutcome]:
        """See FileStore.add."""

        def write(conn: sa.Connection) -> tuple[str, UploadOutcome]:
            def effect() -> list[str]:
                now = self._clock.now()
                if upload_id is not None and not upload_rows.end(conn, organization_id, upload_id, now):
                    raise UploadNotFound(upload_id)
                addition = Addition(organization_id, file_id, header, source, subject_id, now)
                added, outcome = add_file(conn, addition)
                return [added, outcome.value]

            (added, outcome), _ = self._requests.once(conn, key, effect)
            return added, UploadOutcome(outcome)

        return await self._database.write(write)

    async def found(self, key: RequestKey | None) -> tuple[str, UploadOutcome] | None:
        """See FileStore.found."""
        if key is None:
            return None
        found = await self._database.read(lambda conn: self._requests.find(conn, key))
        return None if found is None else (found[0], UploadOutcome(found[1]))

    async def lines(self, organization_id: str, file_id: str, first: int, last: int, max_bytes: int) -> TextPart:
        """See FileStore.lines."""

        def read(conn: sa.Connection) -> TextPart:
            row = rows.require(conn, organization_id, file_id)
            if row.text_id is None:
                raise FileNotParsed(row.name, row.status.upper())
            part = text_rows.read_part(conn, organization_id, file_id, row.text_id, (first, last), max_bytes)
            starts = tuple(msgspec.json.decode(row.page_starts)) if row.page_starts else ()
            return TextPart(tuple(part), first, row.total_lines or 0, starts)

        return await self._database.read(read)

    async def retry(self, organization_id: str, file_id: str, key: RequestKey | None) -> None:
        """See FileStore.retry."""

        def write(conn: sa.Connection) -> None:
            def effect() -> list[str]:
                row, now = rows.require(conn, organization_id, file_id), self._clock.now()
                if row.status in (FileStatus.COMPLETED, FileStatus.ERROR):
                    values = {
                        "status": FileStatus.PENDING if row.expected is None else FileStatus.FETCHING,
                        "due_at": now,
                        "claim": row.claim + 1,
                        "failures": 0,
                        "error_message": None,
                        "next_text_id": None,
                        "next_text": None,
                        "updated_at": now,
                    }
                    conn.execute(files.update().where(rows.is_file(organization_id, file_id)).values(**values))
                    folder_rows.count(conn, organization_id, row.folder_id, now)
                return [file_id]

            self._requests.once(conn, key, effect)

        await self._database.write(write)

    async def get(self, organization_id: str, file_id: str) -> File:
        """See FileStore.get."""
        return await self._database.read(lambda conn: rows.file_from_row(rows.require(conn, organization_id, file_id)))

    async def list_page(
        self, organization_id: str, filter_: FileFilter, page: PageQuery, order: FileOrder
    ) -> Page[File]:
        """See FileStore.list_page."""

        def read(conn: sa.Connection) -> Page[File]:
            query = sa.select(files).where(_matches(organization_id, filter_))
            found = paginate(conn, query, page, key=_ORDERS[order], id=files.c.id, scope=rows.live(organization_id))
            return found.map(rows.file_from_row)

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: FileFilter) -> int:
        """See FileStore.count."""
        query = sa.select(sa.func.count()).select_from(files).where(_matches(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def delete(self, organization_id: str, file_id: str, key: RequestKey | None) -> None:
        """See FileStore.delete."""

        def write(conn: sa.Connection) -> None:
            def effect() -> list[str]:
                row = conn.execute(sa.select(files).where(rows.is_file(organization_id, file_id))).first()
                if row is None:
                    raise FileNotFound(file_id)
                if row.deleted_at is None:
                    now = self._clock.now()
                    rows.bury(conn, organization_id, row, now)
                    folder_rows.count(conn, organization_id, row.folder_id, now, -1, -row.size_bytes)
                return [file_id]

            self._requests.once(conn, key, effect)

        await self._database.write(write)


def _matches(organization_id: str, filter_: FileFilter) -> sa.ColumnElement[bool]:
    conditions = [rows.live(organization_id)]
    if filter_.file_ids:
        conditions.append(files.c.id.in_(filter_.file_ids))
    if filter_.folder_id is not None:
        conditions.append(files.c.folder_id == filter_.folder_id)
    if filter_.agent_id is not None:
        conditions.append(files.c.folder_id.in_(holders.holds_folder(organization_id, filter_.agent_id)))
    if filter_.name is not None:
        conditions.append(files.c.name == filter_.name)
    if filter_.name_search:
        conditions.append(files.c.names_folded.contains(filter_.name_search.casefold(), autoescape=True))
    if filter_.statuses:
        conditions.append(files.c.status.in_([status.value for status in filter_.statuses]))
    return sa.and_(*conditions)
