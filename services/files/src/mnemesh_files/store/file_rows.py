"""The rows of files, their blobs and texts, and what is to be removed."""

import zlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import Aborted
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.sql.rows import Rows
from mnemesh_types.files import FileHeader, FileStatus

from mnemesh_files.errors import FileNotFound
from mnemesh_files.model.files import Content, File, media_type_of, suffixed
from mnemesh_files.store import agent_rows
from mnemesh_files.store.tables import blobs, files, folders, removals, segments, upload_parts

SEGMENT_BYTES: Final = 64 * 1024
"""About the size of the text of a segment: what one view decompresses at least."""
_LEVEL: Final = 6
_RANGE = (
    sa.select(segments.c.first_line, segments.c.data)
    .where(
        segments.c.organization_id == sa.bindparam("org"),
        segments.c.file_id == sa.bindparam("file"),
        segments.c.text_id == sa.bindparam("text"),
        segments.c.first_line <= sa.bindparam("last"),
        segments.c.first_line + segments.c.line_count > sa.bindparam("first"),
    )
    .order_by(segments.c.first_line)
)

AFTER_LEASE: Final = timedelta(minutes=1)
"""An insertion into the archive that began within a lease has ended then."""
_ROWS: Final = Rows(files, File, inline=("provenance",))
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


_CHECK_DUE: Final = Prepared(sa.select(blobs.c.id).where(blobs.c.check_at <= sa.bindparam("now")).limit(1))


class BlobRecords:
    """The contents in the blob store: which exist, and which nothing refers to.

    A content is removed if no file and no upload refers to it when it is checked. A new one is checked after its hold,
    so that a crash leaves nothing behind.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_shared(self, organization_id: str, sha256: str, hold_until: datetime) -> str | None:
        """Returns the id of a stored content with this hash, which is then not removed before `hold_until`."""

        def write(conn: sa.Connection) -> str | None:
            found = _shared(conn, organization_id, sha256)
            if found is not None:
                longer = sa.or_(blobs.c.check_at.is_(None), blobs.c.check_at < hold_until)
                mine = sa.and_(_usable(organization_id, found), longer)
                conn.execute(blobs.update().where(mine).values(check_at=hold_until))
            return found

        return await self._database.write(write)

    async def used_bytes(self, organization_id: str) -> int:
        """Returns the bytes of all files of an organization, from the counters of its folders."""
        total = sa.select(sa.func.coalesce(sa.func.sum(folders.c.size_bytes), 0)).where(
            folders.c.organization_id == organization_id, folders.c.deleted_at.is_(None)
        )
        return int(await self._database.read(lambda conn: conn.execute(total).scalar_one()))

    async def reserve(self, organization_id: str, blob_id: str, content_hash: str, size: int, until: datetime) -> None:
        """Records a content that is about to be stored."""
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
        """Makes a content due to be checked at `now` if no file ever referred to it."""
        await self._database.write(lambda conn: release_unstored(conn, organization_id, blob_id, now))

    async def claim_unused(self, now: datetime, until: datetime, limit: int) -> list[tuple[str, str]]:
        """Returns contents, by organization and id, that nothing refers to and that are due to be checked at `now`.

        They are marked, so that nothing will refer to them, and are returned again after `until` unless `forget` was
        called.
        """
        if await self._database.read(lambda conn: _CHECK_DUE.first(conn, {"now": now}), snapshot=False) is None:
            return []
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
        """Deletes the record of a content that was removed from the blob store."""
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


def segment_rows(organization_id: str, file_id: str, text_id: str, lines: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    start, size = 0, 0
    for end, line in enumerate(lines, start=1):
        size += len(line) + 1
        if size >= SEGMENT_BYTES or end == len(lines):
            yield {
                "organization_id": organization_id,
                "file_id": file_id,
                "text_id": text_id,
                "first_line": start + 1,
                "line_count": end - start,
                "data": zlib.compress("\n".join(lines[start:end]).encode(), _LEVEL),
            }
            start, size = end, 0


def line_ranges(
    conn: sa.Connection, organization_id: str, file_id: str, text_id: str, lines: tuple[int, int]
) -> Iterator[list[str]]:
    """Yields the lines of a range, from 1 and both ends inclusive, segment by segment. Yields nothing without a text.

    A caller that has enough stops, and decompresses no more.
    """
    first, last = lines
    of = {"org": organization_id, "file": file_id, "text": text_id, "first": first, "last": last}
    for row in conn.execute(_RANGE, of):
        some = zlib.decompress(row.data).decode().split("\n")
        yield some[max(0, first - row.first_line) : max(0, last - row.first_line + 1)]


def read_part(
    conn: sa.Connection, organization_id: str, file_id: str, text_id: str, lines: tuple[int, int], max_bytes: int
) -> list[str]:
    """Returns the lines of a range, both ends inclusive, as many as fit into `max_bytes` of UTF-8, at least one."""
    part: list[str] = []
    size = 0
    for some in line_ranges(conn, organization_id, file_id, text_id, lines):
        for line in some:
            size += len(line.encode()) + 1
            if part and size > max_bytes + 1:
                return part
            part.append(line)
    return part


def delete_texts(conn: sa.Connection, organization_id: str, file_id: str, *, except_id: str | None = None) -> int:
    """Deletes the texts of a file, except one; returns the number of segments."""
    mine = sa.and_(segments.c.organization_id == organization_id, segments.c.file_id == file_id)
    if except_id is not None:
        mine = sa.and_(mine, segments.c.text_id != except_id)
    return conn.execute(segments.delete().where(mine)).rowcount


class RemovalKind(StrEnum):
    """What is removed."""

    ARCHIVE = "archive"
    """The archive of a folder, by the id of the folder."""
    FILE = "file"
    """The passages and the text of a file, by its id."""
    PASSAGES = "passages"
    """Passages of earlier texts of a file, by the id of the text that replaced them."""


def add(
    conn: sa.Connection, organization_id: str, kind: RemovalKind, id_: str, due_at: datetime, **details: Any
) -> None:
    """Records a removal; replaces one of the same thing."""
    conn.execute(removals.delete().where(is_removal(organization_id, kind, id_)))
    conn.execute(
        removals.insert().values(
            organization_id=organization_id,
            kind=kind,
            id=id_,
            details=msgspec.json.encode(details).decode(),
            due_at=due_at,
        )
    )


def is_removal(organization_id: str, kind: str, id_: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects a removal."""
    return sa.and_(removals.c.organization_id == organization_id, removals.c.kind == kind, removals.c.id == id_)


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
    return conn.execute(_NAMED, {"org": organization_id, "folder": folder_id, "name": name}).first()


def file_from_row(row: sa.Row[Any]) -> File:
    return _ROWS.from_row(row, **({} if row.warnings else {"warnings": ()}))


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
    release(conn, organization_id, row.blob_id, now)
    agent_rows.forget_files(conn, organization_id, [row.id])
    conn.execute(files.update().where(is_file(organization_id, row.id)).values(**_BURIED, deleted_at=now))
    _add_removal(conn, organization_id, row, now)


def bury_all(conn: sa.Connection, organization_id: str, folder_id: str, now: datetime) -> None:
    """Replaces the files of a folder by tombstones, and records the removal of what they have."""
    mine = sa.and_(live(organization_id), files.c.folder_id == folder_id)
    columns = (files.c.id, files.c.blob_id, files.c.folder_id, files.c.due_at)
    for row in conn.execute(sa.select(*columns).where(mine)).all():
        release(conn, organization_id, row.blob_id, now)
        _add_removal(conn, organization_id, row, now)
    conn.execute(files.update().where(mine).values(**_BURIED, deleted_at=now))


def _add_removal(conn: sa.Connection, organization_id: str, row: Any, now: datetime) -> None:
    """Records the removal of a file: after the lease of its worker, which may be inserting passages."""
    leased = row.due_at is not None and row.due_at > now
    due_at = row.due_at + AFTER_LEASE if leased else now
    add(conn, organization_id, RemovalKind.FILE, row.id, due_at, folder_id=row.folder_id)


_BURIED: Final[dict[str, Any]] = {
    **UNPARSED,
    **dict.fromkeys(("due_at", "blob_id", "path", "metadata", "source_url", "expected")),
    **dict.fromkeys(("name", "names_folded", "original_name", "sha256", "media_type"), ""),
    "size_bytes": 0,
}
