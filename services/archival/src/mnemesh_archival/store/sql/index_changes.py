"""The changes that the vector index must follow, written in the transaction of the record.

The key of a collection is the handle of its embedder; the id of a record is the point id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from mnemesh_retrieval.indexing.outbox import add_changes, add_group
from mnemesh_retrieval.indexing.records import Change, Claim

from mnemesh_archival.store.sql import reembedding_rows
from mnemesh_archival.store.sql.tables import index_tables, left_collections

_LEFT = sa.select(left_collections.c.embedder).where(
    left_collections.c.organization_id == sa.bindparam("org"), left_collections.c.archive_id == sa.bindparam("archive")
)


def collections_of(conn: sa.Connection, organization_id: str, archive_id: str, serving: str) -> list[str]:
    """Returns the collections that have the passages of an archive: the serving one, and that of a new embedder."""
    target = reembedding_rows.target(conn, organization_id, archive_id)
    return [serving, target] if target is not None else [serving]


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
