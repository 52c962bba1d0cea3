"""What changes the vector index: changes of passages, and archives whose embedder changes."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.indexing.outbox import Change, Claim, add_changes, add_group
from mnemesh_types.archival import Archive, EmbedderIdentity, ReembeddingState

from mnemesh_archival.model.archives import EmbedderChange, decide_embedder_change
from mnemesh_archival.store import passage_rows as rows
from mnemesh_archival.store.passage_rows import next_position
from mnemesh_archival.store.tables import (
    IndexedPassage,
    archives,
    index_tables,
    left_collections,
    passages,
    reembeddings,
)

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


_LEFT = sa.select(left_collections.c.embedder).where(
    left_collections.c.organization_id == sa.bindparam("org"), left_collections.c.archive_id == sa.bindparam("archive")
)


def collections_of(conn: sa.Connection, organization_id: str, archive_id: str, serving: str) -> list[str]:
    """Returns the collections that have the passages of an archive: the serving one, and that of a new embedder."""
    other = target(conn, organization_id, archive_id)
    return [serving, other] if other is not None else [serving]


def collections_with_points(conn: sa.Connection, organization_id: str, archive_id: str, serving: str) -> list[str]:
    """Returns the collections that may have points of an archive, those that it has left included."""
    left = conn.execute(_LEFT, {"org": organization_id, "archive": archive_id}).scalars()
    return list(dict.fromkeys([*collections_of(conn, organization_id, archive_id, serving), *left]))


def add(
    conn: sa.Connection, collections: Iterable[str], points: Sequence[UUID], claim: Claim | None, now: datetime
) -> tuple[Change, ...]:
    """Adds a change of each passage for each collection."""
    subjects = [str(point) for point in points]
    return tuple(
        change
        for collection in collections
        for change in add_changes(conn, index_tables, collection, subjects, now, claim=claim)
    )


def add_archive_deletion(conn: sa.Connection, collections: Iterable[str], archive_id: str, now: datetime) -> None:
    """Adds the change that all passages of an archive are gone."""
    for collection in collections:
        add_group(conn, index_tables, collection, archive_id, now)


_CHANGING = sa.and_(
    reembeddings.c.organization_id == archives.c.organization_id,
    reembeddings.c.archive_id == archives.c.id,
    reembeddings.c.embedder == sa.bindparam("embedder"),
)
_SERVING = archives.c.embedder == sa.bindparam("embedder")
_OF_COLLECTION = sa.or_(_SERVING, sa.exists().where(_CHANGING))
# The change of embedder writes the others itself.
_COPIED = sa.or_(passages.c.position <= reembeddings.c.position, passages.c.position > reembeddings.c.last_position)
_EXPECTED = sa.or_(_SERVING, sa.exists().where(_CHANGING, _COPIED))
_ARCHIVE = sa.and_(archives.c.organization_id == passages.c.organization_id, archives.c.id == passages.c.archive_id)
_POINTS = passages.c.point_id.in_(sa.bindparam("points", expanding=True))
_CONTENT = (
    passages.c.point_id,
    passages.c.text,
    passages.c.organization_id,
    passages.c.archive_id,
    passages.c.tags,
    passages.c.source,
    passages.c.agent_id,
    passages.c.file_id,
    passages.c.folder_id,
    passages.c.created_at,
    # Only one that the collection can use is read.
    sa.case((passages.c.given_embedder == sa.bindparam("embedder"), passages.c.given_vector)).label("given_vector"),
)
_READ = sa.select(*_CONTENT).join(archives, _ARCHIVE).where(_POINTS, rows.LIVE, _OF_COLLECTION)
_EXISTING = sa.select(passages.c.point_id).join(archives, _ARCHIVE).where(_POINTS, rows.LIVE, _OF_COLLECTION)
_PAGE = (
    sa.select(passages.c.point_id)
    .join(archives, _ARCHIVE)
    .where(passages.c.point_id > sa.bindparam("after"), rows.LIVE, _EXPECTED)
    .order_by(passages.c.point_id)
    .limit(sa.bindparam("limit"))
)
_COUNT = sa.select(sa.func.coalesce(sa.func.sum(archives.c.passage_count), 0)).where(
    archives.c.deleted_at.is_(None), _SERVING
)
_COUNT_COPIED = sa.select(sa.func.coalesce(sa.func.sum(reembeddings.c.done), 0)).where(
    reembeddings.c.embedder == sa.bindparam("embedder")
)


class IndexRecords:
    """The passages of all organizations, by collection.

    A collection has the passages of the archives that have its embedder, or are changing to it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def embedders(self) -> dict[str, int]:
        """Returns the embedders of all archives, old and new ones of a change included, with their dimensions."""
        live = archives.c.deleted_at.is_(None)
        serving = sa.select(archives.c.embedder, archives.c.dimension).where(live).distinct()
        targets = sa.select(reembeddings.c.embedder, reembeddings.c.dimension).distinct()

        def read(conn: sa.Connection) -> dict[str, int]:
            return {row.embedder: row.dimension for query in (serving, targets) for row in conn.execute(query)}

        return await self._database.read(read)

    async def list_pending_collections(self) -> Sequence[str]:
        """Returns the collections that the outbox or a collection that an archive has left names."""
        named = sa.union(
            sa.select(index_tables.changes.c.collection).distinct(), sa.select(left_collections.c.embedder).distinct()
        )
        return await self._database.read(lambda conn: list(conn.execute(named).scalars()))

    async def read(self, embedder: str, point_ids: Sequence[UUID]) -> Mapping[UUID, IndexedPassage]:
        """Returns the passages of these points that belong to the collection."""
        return {
            UUID(row.point_id): IndexedPassage(
                text=row.text,
                organization_id=row.organization_id,
                archive_id=row.archive_id,
                tags=rows.decoded_tags(row.tags),
                source=row.source,
                agent_id=row.agent_id,
                file_id=row.file_id,
                folder_id=row.folder_id,
                created_at=row.created_at,
                given_vector=row.given_vector,
            )
            for row in await self._rows(_READ, embedder, point_ids)
        }

    async def page(self, embedder: str, after: UUID | None, limit: int) -> Sequence[UUID]:
        """Returns the points of the collection's passages in order, after the point `after`.

        Those that a change of embedder has not reached yet are not among them.
        """
        values = {"embedder": embedder, "after": str(after) if after is not None else "", "limit": limit}
        return [
            UUID(id_) for id_ in await self._database.read(lambda conn: conn.execute(_PAGE, values).scalars().all())
        ]

    async def find_existing(self, embedder: str, point_ids: Sequence[UUID]) -> set[UUID]:
        """Returns those of the points whose passages belong to the collection."""
        return {UUID(row.point_id) for row in await self._rows(_EXISTING, embedder, point_ids)}

    async def count(self, embedder: str) -> int:
        """Returns the number of passages of the collection, without those that a change of embedder has not reached."""
        values = {"embedder": embedder}
        return await self._database.read(
            lambda conn: sum(int(conn.execute(query, values).scalar_one()) for query in (_COUNT, _COUNT_COPIED))
        )

    async def _rows(self, query: sa.Select[Any], embedder: str, point_ids: Sequence[UUID]) -> list[sa.Row[Any]]:
        def read(conn: sa.Connection) -> list[sa.Row[Any]]:
            found: list[sa.Row[Any]] = []
            for some in rows.chunks([str(point) for point in point_ids]):
                found += conn.execute(query, {"embedder": embedder, "points": some}).all()
            return found

        return await self._database.read(read, name="index_records.read")
