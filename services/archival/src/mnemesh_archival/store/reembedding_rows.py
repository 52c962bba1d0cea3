"""The rows of changes of embedders, and of the collections that archives have left."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_types.archival import Archive, EmbedderIdentity, ReembeddingState

from mnemesh_archival.model.archives import EmbedderChange, decide_embedder_change
from mnemesh_archival.store.passage_rows import next_position
from mnemesh_archival.store.tables import archives, left_collections, passages, reembeddings

GRACE = timedelta(seconds=120)
"""How long the points of a collection that an archive has left are kept: searches that started before may read them."""

_BY_ARCHIVE = sa.and_(
    reembeddings.c.organization_id == sa.bindparam("org"), reembeddings.c.archive_id == sa.bindparam("archive")
)
_TARGET = Prepared(sa.select(reembeddings.c.embedder).where(_BY_ARCHIVE))
_TARGET_IDENTITY = sa.select(reembeddings.c.embedder, reembeddings.c.dimension).where(_BY_ARCHIVE)


def of(organization_id: str, archive_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the change of an archive."""
    return sa.and_(reembeddings.c.organization_id == organization_id, reembeddings.c.archive_id == archive_id)


def target(conn: sa.Connection, organization_id: str, archive_id: str) -> str | None:
    """Returns the new embedder of an archive; None if its embedder is not being changed."""
    row = _TARGET.first(conn, {"org": organization_id, "archive": archive_id})
    return None if row is None else str(row.embedder)


def target_identity(conn: sa.Connection, organization_id: str, archive_id: str) -> EmbedderIdentity | None:
    """Returns the identity of the new embedder of an archive; None if its embedder is not being changed."""
    row = conn.execute(_TARGET_IDENTITY, {"org": organization_id, "archive": archive_id}).first()
    return EmbedderIdentity(row.embedder, row.dimension) if row is not None else None


def start(
    conn: sa.Connection, organization_id: str, archive_id: str, embedder: str, dimension: int, now: datetime
) -> None:
    """Starts a change, and cancels an unfinished one."""
    cancel(conn, organization_id, archive_id, now)
    mine = sa.and_(archives.c.organization_id == organization_id, archives.c.id == archive_id)
    conn.execute(archives.update().where(mine).values(generation=archives.c.generation + 1))
    # The points that the archive has there are overwritten.
    forget_left(conn, organization_id, archive_id, embedder)
    conn.execute(
        reembeddings.insert().values(
            organization_id=organization_id,
            archive_id=archive_id,
            generation=conn.execute(sa.select(archives.c.generation).where(mine)).scalar_one(),
            embedder=embedder,
            dimension=dimension,
            position=0,
            last_position=next_position(conn, organization_id, archive_id) - 1,
            done=0,
            started_at=now,
            claimed_until=now,
        )
    )


def cancel(conn: sa.Connection, organization_id: str, archive_id: str, now: datetime) -> None:
    """Cancels an unfinished change. The points of the new embedder are deleted later."""
    canceled = target(conn, organization_id, archive_id)
    if canceled is not None:
        end(conn, organization_id, archive_id)
        leave(conn, organization_id, archive_id, canceled, now)


def end(conn: sa.Connection, organization_id: str, archive_id: str) -> None:
    """Removes the row of a change."""
    conn.execute(reembeddings.delete().where(of(organization_id, archive_id)))


def leave(conn: sa.Connection, organization_id: str, archive_id: str, embedder: str, now: datetime) -> None:
    """Records that an archive has left a collection."""
    forget_left(conn, organization_id, archive_id, embedder)
    conn.execute(
        left_collections.insert().values(
            organization_id=organization_id,
            archive_id=archive_id,
            embedder=embedder,
            remove_after=now + GRACE,
            position=0,
        )
    )


def forget_left(conn: sa.Connection, organization_id: str, archive_id: str, embedder: str | None = None) -> None:
    """Removes the records that an archive has left a collection, or any."""
    mine = [left_collections.c.organization_id == organization_id, left_collections.c.archive_id == archive_id]
    if embedder is not None:
        mine.append(left_collections.c.embedder == embedder)
    conn.execute(left_collections.delete().where(*mine))


def progress(conn: sa.Connection, organization_id: str, archive_ids: Sequence[str]) -> dict[str, ReembeddingState]:
    """Returns the progress of the changes of these archives, by archive id."""
    query = (
        sa.select(reembeddings.c.archive_id, reembeddings.c.embedder, reembeddings.c.done, archives.c.passage_count)
        .join(
            archives,
            sa.and_(
                archives.c.organization_id == reembeddings.c.organization_id, archives.c.id == reembeddings.c.archive_id
            ),
        )
        .where(reembeddings.c.organization_id == organization_id, reembeddings.c.archive_id.in_(archive_ids))
    )
    return {
        row.archive_id: ReembeddingState(row.embedder, min(row.done, row.passage_count), row.passage_count)
        for row in conn.execute(query)
    }


def change_embedder(
    conn: sa.Connection, organization_id: str, current: sa.Row[Any], wanted: Archive, now: datetime
) -> dict[str, Any]:
    """Sets the embedder of an archive at once, or starts or cancels a change. Returns the columns to set at once."""
    existing = sa.select(passages.c.id).where(
        passages.c.organization_id == organization_id,
        passages.c.archive_id == current.id,
        passages.c.deleted_at.is_(None),
    )
    change = decide_embedder_change(
        current.embedder,
        target(conn, organization_id, current.id),
        wanted.embedder,
        has_passages=conn.execute(existing.limit(1)).first() is not None,
    )
    if change in {EmbedderChange.CANCEL, EmbedderChange.SET}:
        cancel(conn, organization_id, current.id, now)
    if change is EmbedderChange.START:
        start(conn, organization_id, current.id, wanted.embedder, wanted.dimension, now)
    serving = wanted if change is EmbedderChange.SET else current
    return {"embedder": serving.embedder, "dimension": serving.dimension}
