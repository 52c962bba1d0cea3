"""The rows of changes of embedders."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from mnemesh_archival.errors import ArchiveReembedding
from mnemesh_archival.model.archives import Archive, EmbedderChange, Reembedding, decide_embedder_change
from mnemesh_archival.model.operations import DropArchive
from mnemesh_archival.store.sql import operation_rows
from mnemesh_archival.store.sql.tables import archives, passages, reembeddings

GRACE = timedelta(seconds=120)
"""How long replaced points are kept: calls that started before the switch may still read or write them."""

_BY_ARCHIVE = sa.and_(
    reembeddings.c.organization_id == sa.bindparam("org"), reembeddings.c.archive_id == sa.bindparam("archive")
)
_TARGET = sa.select(reembeddings.c.embedder).where(_BY_ARCHIVE)
_PAUSED_UNTIL = sa.select(reembeddings.c.writers_wait_until).where(_BY_ARCHIVE)


def of(organization_id: str, archive_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the change of an archive."""
    return sa.and_(reembeddings.c.organization_id == organization_id, reembeddings.c.archive_id == archive_id)


def target(conn: sa.Connection, organization_id: str, archive_id: str) -> str | None:
    """Returns the new embedder of an archive; None if its embedder is not being changed."""
    found: str | None = conn.execute(_TARGET, {"org": organization_id, "archive": archive_id}).scalar()
    return found


def require_not_paused(conn: sa.Connection, organization_id: str, archive_id: str, now: datetime) -> None:
    """Raises ArchiveReembedding while writers are paused for the switch."""
    until = conn.execute(_PAUSED_UNTIL, {"org": organization_id, "archive": archive_id}).scalar()
    if until is not None and until > now:
        raise ArchiveReembedding(archive_id)


def start(
    conn: sa.Connection, organization_id: str, archive_id: str, embedder: str, dimension: int, now: datetime
) -> None:
    """Starts a change, and cancels an unfinished one."""
    cancel(conn, organization_id, archive_id, now)
    mine = sa.and_(archives.c.organization_id == organization_id, archives.c.id == archive_id)
    conn.execute(archives.update().where(mine).values(generation=archives.c.generation + 1))
    conn.execute(
        reembeddings.insert().values(
            organization_id=organization_id,
            archive_id=archive_id,
            generation=conn.execute(sa.select(archives.c.generation).where(mine)).scalar_one(),
            embedder=embedder,
            dimension=dimension,
            started_at=now,
            claimed_until=now,
        )
    )


def cancel(conn: sa.Connection, organization_id: str, archive_id: str, now: datetime) -> None:
    """Cancels an unfinished change. Its copies are deleted once no process can be copying."""
    canceled = target(conn, organization_id, archive_id)
    if canceled is not None:
        end(conn, organization_id, archive_id)
        schedule_drop(conn, organization_id, archive_id, canceled, now, GRACE)


def end(conn: sa.Connection, organization_id: str, archive_id: str) -> None:
    """Removes the row of a change."""
    conn.execute(reembeddings.delete().where(of(organization_id, archive_id)))


def schedule_drop(
    conn: sa.Connection, organization_id: str, archive_id: str, embedder: str, now: datetime, after: timedelta
) -> DropArchive:
    """Records an operation that deletes the archive's points from a collection after some time."""
    drop = DropArchive(_drop_id(archive_id, embedder), organization_id, embedder, archive_id)
    if operation_rows.by_id(conn, organization_id, drop.id) is None:
        operation_rows.add(conn, drop, now, after)
    return drop


def is_drop_scheduled(conn: sa.Connection, organization_id: str, archive_id: str, embedder: str) -> bool:
    """Returns whether such an operation is unsettled. Nothing may be written to that collection before it is."""
    return operation_rows.by_id(conn, organization_id, _drop_id(archive_id, embedder)) is not None


def progress(conn: sa.Connection, organization_id: str, archive_ids: Sequence[str]) -> dict[str, Reembedding]:
    """Returns the progress of the changes of these archives, by archive id."""
    query = (
        sa.select(reembeddings.c.archive_id, reembeddings.c.embedder, reembeddings.c.generation)
        .where(reembeddings.c.organization_id == organization_id, reembeddings.c.archive_id.in_(archive_ids))
        .order_by(reembeddings.c.archive_id)
    )
    found: dict[str, Reembedding] = {}
    for row in conn.execute(query).all():
        live = sa.and_(
            passages.c.organization_id == organization_id,
            passages.c.archive_id == row.archive_id,
            passages.c.state == "live",
        )
        copied = sa.func.count().filter(passages.c.generation == row.generation)
        done, total = conn.execute(sa.select(copied, sa.func.count()).select_from(passages).where(live)).one()
        found[row.archive_id] = Reembedding(row.embedder, done, total)
    return found


def _drop_id(archive_id: str, embedder: str) -> str:
    return f"vacate-{archive_id}/{embedder}"


def change_embedder(
    conn: sa.Connection, organization_id: str, current: sa.Row[Any], wanted: Archive, now: datetime
) -> dict[str, Any]:
    """Sets the embedder of an archive at once, or starts or cancels a change. Returns the columns to set at once."""
    existing = sa.select(passages.c.id).where(
        passages.c.organization_id == organization_id,
        passages.c.archive_id == current.id,
        passages.c.state != "deleted",
    )
    change = decide_embedder_change(
        current.embedder,
        target(conn, organization_id, current.id),
        wanted.embedder,
        has_passages=conn.execute(existing.limit(1)).first() is not None,
        drop_scheduled=is_drop_scheduled(conn, organization_id, current.id, wanted.embedder),
    )
    if change in {EmbedderChange.CANCEL, EmbedderChange.SET}:
        cancel(conn, organization_id, current.id, now)
    if change is EmbedderChange.START:
        start(conn, organization_id, current.id, wanted.embedder, wanted.dimension, now)
    serving = wanted if change is EmbedderChange.SET else current
    return {"embedder": serving.embedder, "dimension": serving.dimension}
