"""The ledger's rows of passages: finding them, whole batches at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from mnemesh_archival.model.passages import Passage, PassagePosition
from mnemesh_archival.store.sql.tables import archives, passages

T = TypeVar("T")
# Made once: making a statement costs more than running it.
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
_BESIDE = sa.and_(
    _OWN.c.organization_id == sa.bindparam("org"),
    _NEAR.c.organization_id == sa.bindparam("org"),
    _NEAR.c.archive_id == _OWN.c.archive_id,
    _NEAR.c.position >= _OWN.c.position - sa.bindparam("reach"),
    _NEAR.c.position <= _OWN.c.position + sa.bindparam("reach"),
    sa.or_(_NEAR.c.state == "live", _NEAR.c.point_id == _OWN.c.point_id),
)
_PLACE = (_NEAR.c.point_id, _NEAR.c.archive_id, _NEAR.c.strand, _NEAR.c.position, _NEAR.c.created_at)
_GIVEN = _OWN.c.point_id.in_(sa.bindparam("points", expanding=True))
# An outer join that asks for points alone, so that SQLite begins with them, not with all that the organization has.
_AROUND = sa.select(*_PLACE).select_from(_OWN.outerjoin(_NEAR, _BESIDE)).where(_GIVEN)
# PostgreSQL would rather read all that the organization has, once: a limit, which no place exceeds, keeps it from that.
_LIMITED = sa.select(*_PLACE).where(_BESIDE).order_by(_NEAR.c.position).limit(sa.bindparam("most")).lateral()
_AROUND_POSTGRESQL = sa.select(_LIMITED).select_from(_OWN.join(_LIMITED, sa.true())).where(_GIVEN)


def rows(conn: sa.Connection, organization_id: str, passage_ids: Sequence[str]) -> list[sa.Row[Any]]:
    """What the ledger knows of these passages, with the embedder of each one's archive."""
    found: list[sa.Row[Any]] = []
    for some in chunks(passage_ids):
        found += conn.execute(_ROWS, {"org": organization_id, "passages": some}).all()
    return found


def settle(conn: sa.Connection, organization_id: str, passage_ids: Sequence[str]) -> set[str]:
    """Note that passages are in the index now; those of which that was not noted before."""
    settled: set[str] = set()
    for some in chunks(passage_ids):
        settled.update(conn.execute(_SETTLE, {"org": organization_id, "passages": some}).scalars())
    return settled


def twins(conn: sa.Connection, organization_id: str, archive_id: str, hashes: Sequence[str]) -> dict[str, str]:
    """Passages of the archive by the hash of their text."""
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


def around(conn: sa.Connection, organization_id: str, point_ids: Sequence[UUID], reach: int) -> list[PassagePosition]:
    """The places of these passages and of the live ones up to so many before and after each."""
    known = {str(point): point for point in point_ids}
    found: dict[str | None, sa.Row[*tuple[Any, ...]]] = {}
    around = _AROUND if conn.dialect.name == "sqlite" else _AROUND_POSTGRESQL
    for some in chunks(list(known)):
        beside = conn.execute(around, {"org": organization_id, "points": some, "reach": reach, "most": 2 * reach + 1})
        found.update({row[0]: row for row in beside})
    found.pop(None, None)  # what a passage of another organization has beside it
    return [PassagePosition(known.get(point) or UUID(point), *place) for point, *place in found.values()]


def next_position(conn: sa.Connection, organization_id: str, archive_id: str) -> int:
    """The place behind the last one."""
    return int(conn.scalar(_LAST, {"org": organization_id, "archive": archive_id}) or 0) + 1


def strand(passage: Passage) -> str:
    """What passages share that one writer took from one source."""
    return " ".join((passage.source.name, passage.agent_id or "-", passage.file_id or "-"))


def entombed(now: datetime) -> dict[str, Any]:
    """What is left of the row of a deleted passage: nothing that it said."""
    return {"state": "deleted", "deleted_at": now, "tags": "[]", "content_hash": "", "strand": ""}


def are(organization_id: str, passage_ids: Sequence[str]) -> sa.ColumnElement[bool]:
    """The rows of these passages."""
    return sa.and_(passages.c.organization_id == organization_id, passages.c.id.in_(passage_ids))


def chunks(values: Sequence[T], size: int = 500) -> list[Sequence[T]]:
    """Stretches that fit into one statement."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def content_hash(text: str) -> str:
    """What two passages of the same text share."""
    return hashlib.sha256(text.encode()).hexdigest()
