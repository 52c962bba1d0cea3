"""The rows of the ledger of passages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from mnemesh_archival.model.passages import PassagePosition
from mnemesh_archival.store.sql.tables import archives, passages

T = TypeVar("T")
# Built once: building a statement costs more than running it.
_THESE = sa.and_(
    passages.c.organization_id == sa.bindparam("org"), passages.c.id.in_(sa.bindparam("passages", expanding=True))
)
_ROWS = (
    sa.select(passages, archives.c.embedder)
    .join(
        archives,
        sa.and_(archives.c.organization_id == passages.c.organization_id, archives.c.id == passages.c.archive_id),
    )
    .where(_THESE)
)
_SETTLE = passages.update().where(_THESE, passages.c.state == "pending").values(state="live").returning(passages.c.id)
_LAST = sa.select(sa.func.max(passages.c.position)).where(
    passages.c.organization_id == sa.bindparam("org"), passages.c.archive_id == sa.bindparam("archive")
)
_OWN, _NEAR = passages.alias("own"), passages.alias("near")
_NEIGHBOURS = sa.and_(
    _OWN.c.organization_id == sa.bindparam("org"),
    _NEAR.c.organization_id == sa.bindparam("org"),
    _NEAR.c.archive_id == _OWN.c.archive_id,
    _NEAR.c.position >= _OWN.c.position - sa.bindparam("reach"),
    _NEAR.c.position <= _OWN.c.position + sa.bindparam("reach"),
    sa.or_(_NEAR.c.state == "live", _NEAR.c.point_id == _OWN.c.point_id),
)
_POSITION = (_NEAR.c.point_id, _NEAR.c.archive_id, _NEAR.c.strand, _NEAR.c.position, _NEAR.c.created_at)
_REQUESTED = _OWN.c.point_id.in_(sa.bindparam("points", expanding=True))
# An outer join whose only condition is on the points makes SQLite start from them instead of from all rows of the
# organization.
_AROUND = sa.select(*_POSITION).select_from(_OWN.outerjoin(_NEAR, _NEIGHBOURS)).where(_REQUESTED)
# PostgreSQL would read all rows of the organization once. The limit, which no passage exceeds, prevents that plan.
_LIMITED = sa.select(*_POSITION).where(_NEIGHBOURS).order_by(_NEAR.c.position).limit(sa.bindparam("limit")).lateral()
_AROUND_POSTGRESQL = sa.select(_LIMITED).select_from(_OWN.join(_LIMITED, sa.true())).where(_REQUESTED)


def rows(conn: sa.Connection, organization_id: str, passage_ids: Sequence[str]) -> list[sa.Row[Any]]:
    """Returns the rows of these passages, each with the embedder of its archive."""
    found: list[sa.Row[Any]] = []
    for some in chunks(passage_ids):
        found += conn.execute(_ROWS, {"org": organization_id, "passages": some}).all()
    return found


def settle(conn: sa.Connection, organization_id: str, passage_ids: Sequence[str]) -> set[str]:
    """Marks pending passages as live. Returns the ids of those that were pending."""
    settled: set[str] = set()
    for some in chunks(passage_ids):
        settled.update(conn.execute(_SETTLE, {"org": organization_id, "passages": some}).scalars())
    return settled


def duplicates(conn: sa.Connection, organization_id: str, archive_id: str, hashes: Sequence[str]) -> dict[str, str]:
    """Returns the ids of the archive's passages by the hash of their text."""
    found: dict[str, str] = {}
    for some in chunks(hashes):
        query = sa.select(passages.c.content_hash, passages.c.id).where(
            passages.c.organization_id == organization_id,
            passages.c.archive_id == archive_id,
            passages.c.content_hash.in_(some),
            passages.c.state != "deleted",
        )
        found.update({row.content_hash: row.id for row in conn.execute(query).all()})
    return found


def neighbours(
    conn: sa.Connection, organization_id: str, point_ids: Sequence[UUID], reach: int
) -> list[PassagePosition]:
    """Returns the positions of these passages and of the live ones up to `reach` before and after each."""
    known = {str(point): point for point in point_ids}
    found: dict[str | None, sa.Row[*tuple[Any, ...]]] = {}
    query = _AROUND if conn.dialect.name == "sqlite" else _AROUND_POSTGRESQL
    for some in chunks(list(known)):
        some_rows = conn.execute(
            query, {"org": organization_id, "points": some, "reach": reach, "limit": 2 * reach + 1}
        )
        found.update({row[0]: row for row in some_rows})
    found.pop(None, None)  # the neighbours of a passage of another organization
    return [PassagePosition(known.get(point) or UUID(point), *rest) for point, *rest in found.values()]


def next_position(conn: sa.Connection, organization_id: str, archive_id: str) -> int:
    """Returns the position after the last passage of the archive."""
    return int(conn.scalar(_LAST, {"org": organization_id, "archive": archive_id}) or 0) + 1


def tombstone_values(now: datetime) -> dict[str, Any]:
    """Returns the column values of a deleted passage, without anything of its content."""
    return {"state": "deleted", "deleted_at": now, "tags": "[]", "content_hash": "", "strand": ""}


def by_ids(organization_id: str, passage_ids: Sequence[str]) -> sa.ColumnElement[bool]:
    """Returns the condition that selects these passages."""
    return sa.and_(passages.c.organization_id == organization_id, passages.c.id.in_(passage_ids))


def chunks(values: Sequence[T], size: int = 500) -> list[Sequence[T]]:
    """Splits values into lists that fit into one statement."""
    return [values[start : start + size] for start in range(0, len(values), size)]
