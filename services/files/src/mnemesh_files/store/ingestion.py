"""The stores of the worker: claims of files, parsed texts with their passages, and removals."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.sql.rows import Rows
from mnemesh_kit.time import Clock
from mnemesh_types.files import FileStatus

from mnemesh_files.errors import LeaseLost
from mnemesh_files.model.files import Content, FilePassage, Job, ParsedText
from mnemesh_files.store import agent_rows, file_rows, folder_rows
from mnemesh_files.store import file_rows as rows
from mnemesh_files.store.agent_rows import open_ready_file
from mnemesh_files.store.file_rows import RemovalKind, line_ranges
from mnemesh_files.store.tables import file_passages, files, folders, removals, segments

_IN_ONE: Final = 500
_p = file_passages.c
BATCH_ROWS: Final = 2_000
BATCH_BYTES: Final = 4 * 1024 * 1024
IN_FLIGHT: Final = timedelta(minutes=2)
"""An insertion into the archive that began before a claim ended has ended then."""
REMOVED_AT_ONCE: Final = 1_000
_DUE = (
    sa.select(files, folders.c.archive_id, folders.c.chunk_size)
    .join(folders, sa.and_(folders.c.organization_id == files.c.organization_id, folders.c.id == files.c.folder_id))
    .where(
        files.c.due_at <= sa.bindparam("now"),
        files.c.organization_id > sa.bindparam("after"),
        files.c.deleted_at.is_(None),
    )
    .order_by(files.c.organization_id, files.c.due_at)
    .limit(1)
)
_SMALL = Prepared(_DUE.where(files.c.size_bytes <= sa.bindparam("max_bytes"), files.c.status != FileStatus.FETCHING))
_ANY = Prepared(_DUE)
_WAITING = Prepared(
    sa.select(sa.func.count().label("files")).where(files.c.due_at <= sa.bindparam("now"), files.c.deleted_at.is_(None))
)
_REMOVAL_DUE = Prepared(sa.select(removals.c.id).where(removals.c.due_at <= sa.bindparam("now")).limit(1))
_s = segments.c
_CHUNK = 300


@dataclass(frozen=True, slots=True)
class Removal:
    """The claim of a worker on something that is deleted and has traces left."""

    organization_id: str
    kind: str
    """A RemovalKind of `store.file_rows`."""
    id: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PassageLines:
    """The place of a passage in the text of its file."""

    file_id: str
    start_line: int
    end_line: int


_PASSAGES: Final = Rows(file_passages, FilePassage)
_REMOVALS: Final = Rows(removals, Removal)


def by_text(conn: sa.Connection, organization_id: str, file_id: str) -> Mapping[str, Sequence[FilePassage]]:
    """Returns the passages of all texts of a file, by text, in order."""
    query = sa.select(file_passages).where(is_of_file(organization_id, file_id)).order_by(_p.text_id, _p.position)
    found: dict[str, list[FilePassage]] = {}
    for row in conn.execute(query):
        found.setdefault(row.text_id, []).append(_PASSAGES.from_row(row))
    return found


def mark_embedded(
    conn: sa.Connection, organization_id: str, file_id: str, text_id: str, positions: Sequence[int]
) -> None:
    """Notes that the archive has these passages of a text."""
    mine = sa.and_(is_of_file(organization_id, file_id), _p.text_id == text_id)
    for start in range(0, len(positions), _IN_ONE):
        some = positions[start : start + _IN_ONE]
        conn.execute(file_passages.update().where(mine, _p.position.in_(some)).values(embedded=True))


def keep_text(conn: sa.Connection, organization_id: str, file_id: str, text_id: str) -> tuple[list[str], bool]:
    """Deletes the passages of other texts.

    Returns:
        The ids of those that the kept text does not have, and whether the archive may receive one of them yet.
    """
    texts = by_text(conn, organization_id, file_id)
    kept = {passage.passage_id for passage in texts.get(text_id, ())}
    others = [passage for id_, passages in texts.items() if id_ != text_id for passage in passages]
    stale = dict.fromkeys(passage.passage_id for passage in others if passage.passage_id not in kept)
    conn.execute(file_passages.delete().where(is_of_file(organization_id, file_id), _p.text_id != text_id))
    return list(stale), any(not passage.embedded for passage in others)


def is_of_file(organization_id: str, file_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the passages of a file."""
    return sa.and_(_p.organization_id == organization_id, _p.file_id == file_id)


class IngestionStore:
    """The claims of workers on files, and what they write.

    A claim lasts until its lease ends; writing does not extend it, `renew` does. Every method with a job raises
    LeaseLost if another claim came later, or the file was deleted or replaced.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, after: str, until: datetime, max_bytes: int | None = None) -> Job | None:
        """Claims the file that is due longest in the next organization after `after`, in a circle.

        Args:
            after: the organization that was served last.
            until: the end of the lease.
            max_bytes: only files up to this size, whose content is stored.

        Returns:
            The job; None if no file is due.
        """
        due = _ANY if max_bytes is None else _SMALL
        size = {} if max_bytes is None else {"max_bytes": max_bytes}

        def write(conn: sa.Connection) -> Job | None:
            now = self._clock.now()
            row = due.first(conn, {"now": now, "after": after, **size})
            if row is None and after:
                row = due.first(conn, {"now": now, "after": "", **size})
            if row is None:
                return None
            values: dict[str, Any] = {"due_at": until, "claim": row.claim + 1, "failures": row.failures + 1}
            if row.status == FileStatus.PENDING:
                values["status"] = FileStatus.PARSING
                folder_rows.count(conn, row.organization_id, row.folder_id, now)
            conn.execute(files.update().where(rows.is_file(row.organization_id, row.id)).values(**values))
            return _job(row)

        found = await self._database.read(
            lambda conn: due.first(conn, {"now": self._clock.now(), "after": "", **size}), snapshot=False
        )
        return await self._database.write(write, name="ingestion.claim") if found is not None else None

    async def count_waiting(self) -> int:
        """Returns the number of files that are due and that no worker has claimed."""
        now = self._clock.now()
        return await self._database.read(lambda conn: int(_WAITING.first(conn, {"now": now}).files), snapshot=False)

    async def expire_leases(self) -> int:
        """Ends all leases, whose workers are known to be gone; returns their number."""
        now = self._clock.now()
        leased = files.update().where(files.c.due_at > now, files.c.deleted_at.is_(None)).values(due_at=now)
        return await self._database.write(lambda conn: conn.execute(leased).rowcount)

    async def renew(self, job: Job, until: datetime) -> None:
        """Extends the lease."""
        await self._database.write(lambda conn: _update(conn, job, due_at=until), name="ingestion.renew")

    async def record_fetched(self, job: Job, content: Content, media_type: str) -> None:
        """Stores the downloaded content of a file, and ends the claim: the file is due to be parsed.

        An equal content that is parsed completes the file.
        """

        def write(conn: sa.Connection) -> None:
            row, now = _require(conn, job), self._clock.now()
            values: dict[str, Any] = {"expected": None, "error_message": None, "updated_at": now, "failures": 0}
            if row.sha256 == content.sha256 and row.blob_id is not None and row.searchable:
                values |= {"status": FileStatus.COMPLETED, "due_at": None}
            else:
                shared = file_rows.use(conn, job.organization_id, content, now)
                if row.blob_id != shared.blob_id:
                    file_rows.release(conn, job.organization_id, row.blob_id, now)
                values |= rows.with_content(shared) | {"due_at": now}
                if row.blob_id is not None:
                    agent_rows.restart_windows(conn, job.organization_id, row.id, now)
                    values["revision"] = row.revision + 1
            if media_type and not row.media_type_given:
                values["media_type"] = media_type
            _update(conn, job, **values)
            by = content.size_bytes - row.size_bytes
            folder_rows.count(conn, job.organization_id, row.folder_id, now, 0, by)

        await self._database.write(write, name="ingestion.fetched")

    async def add_text(self, job: Job, text: ParsedText, passages: Sequence[FilePassage]) -> None:
        """Stores a text and its passages, and makes it the next text of the file.

        If the file has no text, views show it from now on. Written in several transactions; the last one publishes.
        """
        for some in _batches(file_rows.segment_rows(job.organization_id, job.file.id, text.id, text.lines)):
            await self._add(job, segments, some)
        of = {"organization_id": job.organization_id, "file_id": job.file.id, "text_id": text.id}
        values = [_PASSAGES.to_row(passage, **of) for passage in passages]
        for start in range(0, len(values), BATCH_ROWS):
            await self._add(job, file_passages, values[start : start + BATCH_ROWS])

        def publish(conn: sa.Connection) -> None:
            row, now = _require(conn, job), self._clock.now()
            values: dict[str, Any] = {
                "status": FileStatus.EMBEDDING,
                "next_text_id": text.id,
                "next_text": msgspec.json.encode(dict(text.facts)).decode(),
                "total_chunks": len(passages),
                "chunks_embedded": sum(passage.embedded for passage in passages),
                "error_message": None,
                "failures": 0,
            }
            if row.text_id is None:
                values |= {"text_id": text.id, **text.facts}
            if not row.media_type_given:
                values["media_type"] = text.media_type
            _update(conn, job, **values)
            folder_rows.count(conn, job.organization_id, row.folder_id, now)
            if row.text_id is None:
                open_ready_file(conn, job.organization_id, row.folder_id, row.id, now)

        await self._database.write(publish, name="ingestion.publish_text")

    async def _add(self, job: Job, table: sa.Table, some: Sequence[Mapping[str, Any]]) -> None:
        def write(conn: sa.Connection) -> None:
            _require(conn, job)
            conn.execute(table.insert(), list(some))

        await self._database.write(write, name="ingestion.add_text")

    async def text(self, job: Job, text_id: str) -> tuple[str, ...]:
        """Returns the lines of a text."""

        def read(conn: sa.Connection) -> tuple[str, ...]:
            return _all_lines(conn, job, text_id)

        return await self._database.read(read)

    async def passages(self, job: Job) -> Mapping[str, Sequence[FilePassage]]:
        """Returns the passages of all texts of the file, by text, in order."""
        return await self._database.read(lambda conn: by_text(conn, job.organization_id, job.file.id))

    async def record_embedded(self, job: Job, text_id: str, positions: Sequence[int], until: datetime) -> None:
        """Records that the archive has these passages, and extends the lease."""

        def write(conn: sa.Connection) -> None:
            mark_embedded(conn, job.organization_id, job.file.id, text_id, positions)
            _update(conn, job, due_at=until, failures=0, chunks_embedded=files.c.chunks_embedded + len(positions))

        await self._database.write(write, name="ingestion.embedded")

    async def complete(self, job: Job, text_id: str) -> None:
        """Makes a text, whose passages are all in the archive, the text of the file.

        Earlier texts are deleted, and the removal of passages that are not part of this one is recorded.
        """

        def write(conn: sa.Connection) -> None:
            row, now = _require(conn, job), self._clock.now()
            stale, may_arrive = keep_text(conn, job.organization_id, job.file.id, text_id)
            due_at = now + IN_FLIGHT if may_arrive else now
            for start in range(0, len(stale), REMOVED_AT_ONCE):
                details = {"archive_id": job.archive_id, "passage_ids": stale[start : start + REMOVED_AT_ONCE]}
                id_ = f"{text_id}/{start}"
                file_rows.add(conn, job.organization_id, RemovalKind.PASSAGES, id_, due_at, **details)
            file_rows.delete_texts(conn, job.organization_id, job.file.id, except_id=text_id)
            values: dict[str, Any] = {
                "status": FileStatus.COMPLETED,
                "searchable": True,
                "text_id": text_id,
                "next_text_id": None,
                "next_text": None,
                "due_at": None,
                "failures": 0,
                "updated_at": now,
                **msgspec.json.decode(row.next_text),
            }
            _update(conn, job, **values)
            folder_rows.count(conn, job.organization_id, row.folder_id, now)

        await self._database.write(write, name="ingestion.complete")

    async def fail(self, job: Job, message: str) -> None:
        """Sets the status ERROR with a message for the owner of the file."""

        def write(conn: sa.Connection) -> None:
            now = self._clock.now()
            values = {"status": FileStatus.ERROR, "error_message": message, "due_at": None, "updated_at": now}
            _update(conn, job, **values)
            folder_rows.count(conn, job.organization_id, job.file.folder_id, now)

        await self._database.write(write, name="ingestion.fail")

    async def postpone(self, job: Job, due_at: datetime) -> None:
        """Ends the claim. The file is due again at that time, and the claim does not count as a failure."""
        failures = job.failures - 1
        await self._database.write(
            lambda conn: _update(conn, job, due_at=due_at, failures=failures), name="ingestion.postpone"
        )


def _job(row: sa.Row[Any]) -> Job:
    expected = msgspec.json.decode(row.expected) if row.expected else {}
    return Job(
        organization_id=row.organization_id,
        file=rows.file_from_row(row),
        archive_id=row.archive_id,
        chunk_size=row.chunk_size,
        claim=row.claim + 1,
        failures=row.failures + 1,
        next_text_id=row.next_text_id,
        next_text=msgspec.json.decode(row.next_text) if row.next_text else {},
        expected_size=expected.get("size_bytes"),
        expected_sha256=expected.get("sha256"),
    )


def _mine(job: Job) -> sa.ColumnElement[bool]:
    return sa.and_(
        rows.is_file(job.organization_id, job.file.id), files.c.claim == job.claim, files.c.deleted_at.is_(None)
    )


def _require(conn: sa.Connection, job: Job) -> sa.Row[Any]:
    row = conn.execute(sa.select(files).where(_mine(job))).first()
    if row is None:
        raise LeaseLost(job.file.id)
    return row


def _update(conn: sa.Connection, job: Job, **values: Any) -> None:
    if not conn.execute(files.update().where(_mine(job)).values(**values)).rowcount:
        raise LeaseLost(job.file.id)


def _batches(segment_values: Any) -> Any:
    """Yields lists of rows of about BATCH_BYTES."""
    batch: list[dict[str, Any]] = []
    size = 0
    for values in segment_values:
        batch.append(values)
        size += len(values["data"])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _all_lines(conn: sa.Connection, job: Job, text_id: str) -> tuple[str, ...]:
    parts = file_rows.line_ranges(conn, job.organization_id, job.file.id, text_id, (1, 2**31 - 1))
    return tuple(line for part in parts for line in part)


class RemovalStore:
    """What is deleted and still has traces. Removals are idempotent: two workers may do the same one."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, until: datetime, limit: int) -> list[Removal]:
        """Returns removals that are due; they are due again at `until` unless `done` or `postpone` is called."""
        now = self._clock.now()
        query = sa.select(removals).where(removals.c.due_at <= now).order_by(removals.c.due_at).limit(limit)

        def write(conn: sa.Connection) -> list[Removal]:
            found = conn.execute(query).all()
            for row in found:
                mine = file_rows.is_removal(row.organization_id, row.kind, row.id)
                conn.execute(removals.update().where(mine).values(due_at=until))
            return [_REMOVALS.from_row(row) for row in found]

        if await self._database.read(lambda conn: _REMOVAL_DUE.first(conn, {"now": now}), snapshot=False) is None:
            return []
        return await self._database.write(write, name="removals.claim")

    async def archive_of(self, organization_id: str, folder_id: str) -> str | None:
        """Returns the archive of a folder; None if the folder is deleted, and the archive with it."""

        def read(conn: sa.Connection) -> str | None:
            try:
                return str(folder_rows.require(conn, organization_id, folder_id).archive_id)
            except NotFound:
                return None

        return await self._database.read(read)

    async def delete_texts(self, organization_id: str, file_id: str) -> None:
        """Deletes the texts and the records of passages of a file."""

        def write(conn: sa.Connection) -> None:
            file_rows.delete_texts(conn, organization_id, file_id)
            conn.execute(file_passages.delete().where(is_of_file(organization_id, file_id)))

        await self._database.write(write, name="removals.delete_texts")

    async def done(self, removal: Removal) -> None:
        """Ends a removal."""
        mine = file_rows.is_removal(removal.organization_id, removal.kind, removal.id)
        await self._database.write(
            lambda conn: conn.execute(removals.delete().where(mine)).rowcount, name="removals.done"
        )

    async def postpone(self, removal: Removal, due_at: datetime) -> None:
        """Makes a removal due at another time."""
        mine = file_rows.is_removal(removal.organization_id, removal.kind, removal.id)
        postponed = removals.update().where(mine).values(due_at=due_at)
        await self._database.write(lambda conn: conn.execute(postponed).rowcount)


class TextStore:
    """The texts of files, in compressed segments of consecutive lines, and the places of their passages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def lines(
        self, organization_id: str, file_id: str, text_id: str, first: int, last: int, max_chars: int
    ) -> list[str] | None:
        """Returns lines from `first` to `last`, from 1, or as many of them as exceed `max_chars`; None without text."""

        def read(conn: sa.Connection) -> list[str] | None:
            found: list[str] = []
            size, is_known = 0, False
            for part in line_ranges(conn, organization_id, file_id, text_id, (first, last)):
                is_known = True
                found += part
                size += sum(map(len, part)) + len(part)
                if size > max_chars:
                    break
            return found if is_known else None

        return await self._database.read(read)

    async def read_compressed(
        self, organization_id: str, texts: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], list[bytes]]:
        """Returns the compressed segments of texts by file id and text id, each in order."""
        found: dict[tuple[str, str], list[bytes]] = defaultdict(list)

        def read(conn: sa.Connection) -> None:
            for start in range(0, len(texts), _CHUNK):
                some = texts[start : start + _CHUNK]
                # SQLite uses no index for pairs; the ids of files alone select the rows.
                query = (
                    sa.select(_s.file_id, _s.text_id, _s.data)
                    .where(
                        _s.organization_id == organization_id,
                        _s.file_id.in_([file_id for file_id, _ in some]),
                        sa.tuple_(_s.file_id, _s.text_id).in_(some),
                    )
                    .order_by(_s.file_id, _s.text_id, _s.first_line)
                )
                for row in conn.execute(query):
                    found[row.file_id, row.text_id].append(row.data)

        await self._database.read(read)
        return found

    async def passage_lines(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassageLines]:
        """Returns the places of passages in the texts that views show. Passages of other texts are left out."""
        p, f = file_passages.c, files.c
        query = (
            sa.select(p.passage_id, p.file_id, p.start_line, p.end_line)
            .join(
                files,
                sa.and_(f.organization_id == p.organization_id, f.id == p.file_id, f.text_id == p.text_id),
            )
            .where(p.organization_id == organization_id, p.passage_id.in_(passage_ids), f.deleted_at.is_(None))
        )

        def read(conn: sa.Connection) -> dict[str, PassageLines]:
            found = conn.execute(query).all()
            return {row.passage_id: PassageLines(row.file_id, row.start_line, row.end_line) for row in found}

        return await self._database.read(read)
