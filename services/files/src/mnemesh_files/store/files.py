"""The store of files and of uploads."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.sql.rows import Rows
from mnemesh_kit.time import Clock
from mnemesh_types.files import DuplicateHandling, FileFilter, FileHeader, FileStatus, Upload, UploadOutcome

from mnemesh_files.errors import FileNameTaken, FileNotFound, FileNotParsed, TooManyUploads, UploadNotFound
from mnemesh_files.model.files import Content, File, FileOrder, TextPart, UploadPart
from mnemesh_files.store import agent_rows, file_rows, folder_rows
from mnemesh_files.store import file_rows as rows
from mnemesh_files.store.tables import blobs, files, request_ledger, upload_parts, uploads

EXPIRED_AT_ONCE = 100
_UPLOADS: Final = Rows(uploads, Upload)
_PARTS: Final = Rows(upload_parts, UploadPart)

_ORDERS: Final = {
    FileOrder.CREATED: files.c.created_at,
    FileOrder.UPDATED: files.c.updated_at,
    FileOrder.NAME: files.c.name,
}


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
        return rows.with_content(file_rows.use(conn, addition.organization_id, addition.source, addition.now))
    return {**rows.UNPARSED, "size_bytes": 0, "sha256": "", "blob_id": None, **_to_fetch(addition)}


def _leave(conn: sa.Connection, addition: Addition) -> None:
    """Makes the sweep remove the new content, which the file does not need."""
    if isinstance(addition.source, Content):
        file_rows.release_unstored(conn, addition.organization_id, addition.source.blob_id, addition.now)


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
            file_rows.release(conn, organization_id, existing.blob_id, now)
        agent_rows.restart_windows(conn, organization_id, existing.id, now)
    else:
        _leave(conn, addition)
        values["source_url"] = None
        if header.media_type is None:
            values |= {"media_type": existing.media_type, "media_type_given": existing.media_type_given}
    conn.execute(files.update().where(rows.is_file(organization_id, existing.id)).values(**values))
    by = values.get("size_bytes", existing.size_bytes) - existing.size_bytes
    folder_rows.count(conn, organization_id, existing.folder_id, now, 0, by)


def end(conn: sa.Connection, organization_id: str, upload_id: str, now: datetime) -> bool:
    """Deletes an upload and releases its parts. Returns whether it existed."""
    mine = sa.and_(upload_parts.c.organization_id == organization_id, upload_parts.c.upload_id == upload_id)
    for blob_id in conn.execute(sa.select(upload_parts.c.blob_id).where(mine)).scalars().all():
        file_rows.release(conn, organization_id, blob_id, now, also_held=True)
    conn.execute(upload_parts.delete().where(mine))
    return bool(conn.execute(uploads.delete().where(_is_upload(organization_id, upload_id))).rowcount)


class UploadStore:
    """Unfinished uploads and their parts. Methods raise UploadNotFound for one that has ended or expired."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(database, request_ledger, clock)

    async def start(self, organization_id: str, upload: Upload, limit: int, key: RequestKey | None) -> str:
        """Starts an upload; returns its id. Raises TooManyUploads beyond `limit` of the organization."""
        unfinished = sa.and_(uploads.c.organization_id == organization_id, uploads.c.expires_at > upload.created_at)
        count = sa.select(sa.func.count()).select_from(uploads).where(unfinished)

        def effect(conn: sa.Connection) -> list[str]:
            if conn.execute(count).scalar_one() >= limit:
                raise TooManyUploads(limit)
            conn.execute(uploads.insert().values(_UPLOADS.to_row(upload, organization_id=organization_id)))
            return [upload.id]

        return (await self._requests.write_once(key, effect))[0][0]

    async def get(self, organization_id: str, upload_id: str) -> Upload:
        return await self._database.read(
            lambda conn: _UPLOADS.from_row(self._require(conn, organization_id, upload_id))
        )

    async def parts(self, organization_id: str, upload_id: str) -> list[UploadPart]:
        """Returns the parts, in order."""
        query = (
            sa.select(upload_parts)
            .where(upload_parts.c.organization_id == organization_id, upload_parts.c.upload_id == upload_id)
            .order_by(upload_parts.c.offset)
        )

        def read(conn: sa.Connection) -> list[UploadPart]:
            self._require(conn, organization_id, upload_id)
            return [_PARTS.from_row(row) for row in conn.execute(query)]

        return await self._database.read(read)

    async def append(self, organization_id: str, upload_id: str, part: UploadPart, expires_at: datetime) -> bool:
        """Adds a part that is stored. Returns False if another call has added data at its offset."""

        def write(conn: sa.Connection) -> bool:
            if self._require(conn, organization_id, upload_id).received_bytes != part.offset:
                return False
            row = _PARTS.to_row(part, organization_id=organization_id, upload_id=upload_id)
            conn.execute(upload_parts.insert().values(row))
            is_blob = sa.and_(blobs.c.organization_id == organization_id, blobs.c.id == part.blob_id)
            conn.execute(blobs.update().where(is_blob).values(size_bytes=part.size_bytes))
            received = {"received_bytes": part.offset + part.size_bytes, "expires_at": expires_at}
            conn.execute(uploads.update().where(_is_upload(organization_id, upload_id)).values(**received))
            return True

        return await self._database.write(write, name="uploads.append")

    async def cancel(self, organization_id: str, upload_id: str, key: RequestKey | None) -> None:
        """Ends an upload and releases its parts. One that does not exist is not an error."""

        def effect(conn: sa.Connection) -> list[str]:
            end(conn, organization_id, upload_id, self._clock.now())
            return []

        await self._requests.write_once(key, effect)

    async def expire(self) -> int:
        """Ends the uploads that have expired; returns their number."""

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


class FileStore:
    """Files. All methods raise FileNotFound for a file that does not exist.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing; with other
    content it raises RequestIdReused.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(database, request_ledger, clock)

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
        """Adds a file to a folder, and queues it for processing.

        Decides under the lock of the transaction what a duplicate name means (`header.duplicate_handling`).

        Args:
            organization_id: the organization.
            file_id: the id of the file if it is a new one.
            header: the validated header.
            source: the content, which the blob store has, or the URL from which it will be downloaded.
            subject_id: the author.
            key: the idempotency key, whose fingerprint covers the content.
            upload_id: the upload that ends with this.

        Returns:
            The id of the file that was created, replaced or found, and what happened.

        Raises:
            FolderNotFound: the folder does not exist.
            FileNameTaken: the name is taken, and that is an error.
            UploadNotFound: the upload has ended.
        """

        def write(conn: sa.Connection) -> tuple[str, UploadOutcome]:
            def effect() -> list[str]:
                now = self._clock.now()
                if upload_id is not None and not end(conn, organization_id, upload_id, now):
                    raise UploadNotFound(upload_id)
                addition = Addition(organization_id, file_id, header, source, subject_id, now)
                added, outcome = add_file(conn, addition)
                return [added, outcome.value]

            (added, outcome), _ = self._requests.once(conn, key, effect)
            return added, UploadOutcome(outcome)

        return await self._database.write(write)

    async def find_repeated(self, key: RequestKey | None) -> tuple[str, UploadOutcome] | None:
        """Returns what `add` returned for a key; None if it did not run. Raises RequestIdReused."""
        found = await self._requests.find_recorded(key)
        return None if found is None else (found[0], UploadOutcome(found[1]))

    async def lines(self, organization_id: str, file_id: str, first: int, last: int, max_bytes: int) -> TextPart:
        """Returns lines of the text that views show, as many as fit into `max_bytes` of UTF-8, at least one.

        Args:
            organization_id: the organization.
            file_id: the file.
            first: the first line, from 1.
            last: the last line, inclusive; it may be beyond the end.
            max_bytes: the largest size.

        Raises:
            FileNotParsed: the file has no text.
        """

        def read(conn: sa.Connection) -> TextPart:
            row = rows.require(conn, organization_id, file_id)
            if row.text_id is None:
                raise FileNotParsed(row.name, row.status.upper())
            part = file_rows.read_part(conn, organization_id, file_id, row.text_id, (first, last), max_bytes)
            starts = tuple(msgspec.json.decode(row.page_starts)) if row.page_starts else ()
            return TextPart(tuple(part), first, row.total_lines or 0, starts)

        return await self._database.read(read)

    async def retry(self, organization_id: str, file_id: str, key: RequestKey | None) -> None:
        """Queues a file for processing, unless it is queued or being processed."""

        def effect(conn: sa.Connection) -> list[str]:
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

        await self._requests.write_once(key, effect)

    async def get(self, organization_id: str, file_id: str) -> File:
        return await self._database.read(lambda conn: rows.file_from_row(rows.require(conn, organization_id, file_id)))

    async def list_page(
        self, organization_id: str, filter_: FileFilter, page: PageQuery, order: FileOrder
    ) -> Page[File]:
        """Returns a page of files; ties by id."""

        def read(conn: sa.Connection) -> Page[File]:
            query = sa.select(files).where(_matches(organization_id, filter_))
            found = paginate(conn, query, page, key=_ORDERS[order], id=files.c.id, scope=rows.live(organization_id))
            return found.map(rows.file_from_row)

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: FileFilter) -> int:
        """Returns the number of files."""
        query = sa.select(sa.func.count()).select_from(files).where(_matches(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def delete(self, organization_id: str, file_id: str, key: RequestKey | None) -> None:
        """Deletes a file. Deleting it again is not an error.

        One transaction: nothing is visible afterwards. What remains of it elsewhere is recorded as a removal.
        """

        def effect(conn: sa.Connection) -> list[str]:
            row = conn.execute(sa.select(files).where(rows.is_file(organization_id, file_id))).first()
            if row is None:
                raise FileNotFound(file_id)
            if row.deleted_at is None:
                now = self._clock.now()
                rows.bury(conn, organization_id, row, now)
                folder_rows.count(conn, organization_id, row.folder_id, now, -1, -row.size_bytes)
            return [file_id]

        await self._requests.write_once(key, effect)


def _matches(organization_id: str, filter_: FileFilter) -> sa.ColumnElement[bool]:
    conditions = [rows.live(organization_id)]
    if filter_.file_ids:
        conditions.append(files.c.id.in_(filter_.file_ids))
    if filter_.folder_id is not None:
        conditions.append(files.c.folder_id == filter_.folder_id)
    if filter_.agent_id is not None:
        conditions.append(files.c.folder_id.in_(agent_rows.holds_folder(organization_id, filter_.agent_id)))
    if filter_.name is not None:
        conditions.append(files.c.name == filter_.name)
    if filter_.name_search:
        conditions.append(files.c.names_folded.contains(filter_.name_search.casefold(), autoescape=True))
    if filter_.statuses:
        conditions.append(files.c.status.in_([status.value for status in filter_.statuses]))
    return sa.and_(*conditions)
