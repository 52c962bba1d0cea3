"""Changes of embedders as rows: what the SQL stores do about them inside their transactions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from mnemesh_archival.errors import ArchiveMoved
from mnemesh_archival.model.archives import Reembedding
from mnemesh_archival.model.operations import DropArchive
from mnemesh_archival.store.sql import operation_rows
from mnemesh_archival.store.sql.tables import archives, passages, reembeddings

GRACE = timedelta(seconds=120)
"""How long points that do not serve any more stay: calls that began before may still read or write them."""

_OF = sa.and_(
    reembeddings.c.organization_id == sa.bindparam("org"), reembeddings.c.archive_id == sa.bindparam("archive")
)
_TARGET = sa.select(reembeddings.c.embedder).where(_OF)
_WAIT = sa.select(reembeddings.c.writers_wait_until).where(_OF)


def of(organization_id: str, archive_id: str) -> sa.ColumnElement[bool]:
    """The row of an archive's change, if there is one."""
    return sa.and_(reembeddings.c.organization_id == organization_id, reembeddings.c.archive_id == archive_id)


def target(conn: sa.Connection, organization_id: str, archive_id: str) -> str | None:
    """The embedder that the archive is getting; None if it keeps the one that it has."""
    found: str | None = conn.execute(_TARGET, {"org": organization_id, "archive": archive_id}).scalar()
    return found


def require_open(conn: sa.Connection, organization_id: str, archive_id: str, now: datetime) -> None:
    """ArchiveMoved while writers are to wait for the switch."""
    until = conn.execute(_WAIT, {"org": organization_id, "archive": archive_id}).scalar()
    if until is not None and until > now:
        raise ArchiveMoved(archive_id)


def begin(
    conn: sa.Connection, organization_id: str, archive_id: str, embedder: str, dimension: int, now: datetime
) -> None:
    """Begin a change, in the place of another one."""
    leave(conn, organization_id, archive_id, now)
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


def leave(conn: sa.Connection, organization_id: str, archive_id: str, now: datetime) -> None:
    """Give a change up; what it copied goes when nobody can be copying any more."""
    abandoned = target(conn, organization_id, archive_id)
    if abandoned is not None:
        end(conn, organization_id, archive_id)
        vacate(conn, organization_id, archive_id, abandoned, now, GRACE)


def end(conn: sa.Connection, organization_id: str, archive_id: str) -> None:
    """Forget the change."""
    conn.execute(reembeddings.delete().where(of(organization_id, archive_id)))


def vacate(
    conn: sa.Connection, organization_id: str, archive_id: str, embedder: str, now: datetime, after: timedelta
) -> DropArchive:
    """Record that the archive's points leave a collection."""
    drop = DropArchive(_vacating(archive_id, embedder), organization_id, embedder, archive_id)
    if operation_rows.by_id(conn, organization_id, drop.id) is None:
        operation_rows.add(conn, drop, now, after)
    return drop


def is_vacating(conn: sa.Connection, organization_id: str, archive_id: str, embedder: str) -> bool:
    """Whether points of the archive are still to leave that collection: nothing may be put there before."""
    return operation_rows.by_id(conn, organization_id, _vacating(archive_id, embedder)) is not None


def progress(conn: sa.Connection, organization_id: str, archive_ids: Sequence[str]) -> dict[str, Reembedding]:
    """How far the changes of these archives have come, where there are any."""
    query = (
        sa.select(reembeddings.c.archive_id, reembeddings.c.embedder, reembeddings.c.generation)
        .where(reembeddings.c.organization_id == organization_id, reembeddings.c.archive_id.in_(archive_ids))
        .order_by(reembeddings.c.archive_id)
    )
    found: dict[str, Reembedding] = {}
    for row in conn.execute(query).all():
        living = sa.and_(
            passages.c.organization_id == organization_id,
            passages.c.archive_id == row.archive_id,
            passages.c.state == "live",
        )
        copied = sa.func.count().filter(passages.c.generation == row.generation)
        done, total = conn.execute(sa.select(copied, sa.func.count()).select_from(passages).where(living)).one()
        found[row.archive_id] = Reembedding(row.embedder, done, total)
    return found


def _vacating(archive_id: str, embedder: str) -> str:
    return f"vacate-{archive_id}/{embedder}"
