"""The rows of passages: their columns, and the statements that find them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import sqlalchemy as sa

from mnemesh_archival.model.passages import (
    Passage,
    PassageFilter,
    PassagePosition,
    PassageSource,
    content_hash,
    response_bytes,
    strand_of,
)
from mnemesh_archival.store.sql.tables import passages

T = TypeVar("T")
SEPARATOR: Final = "\x1f"
"""Stands before and after each stored tag; no tag contains a control character."""

# Built once: building a statement costs more than running it.
LIVE = passages.c.deleted_at.is_(None)
_OF_ORGANIZATION = passages.c.organization_id == sa.bindparam("org")
_BY_IDS = sa.and_(_OF_ORGANIZATION, passages.c.id.in_(sa.bindparam("ids", expanding=True)))
_BY_POINTS = passages.c.point_id.in_(sa.bindparam("points", expanding=True))
_CONTENT: Final = tuple(column for column in passages.c if column.name not in {"content_hash", "position", "strand"})
_ROWS = sa.select(*_CONTENT).where(_BY_IDS)
_LIVE_ROWS = _ROWS.where(LIVE)
# The organization is compared later: with it, SQLite would use an index that begins with it.
_POINTS = sa.select(*_CONTENT).where(_BY_POINTS)
_POINTS_WITHOUT_TEXT = sa.select(*(column for column in _CONTENT if column.name not in {"text", "metadata"})).where(
    _BY_POINTS
)
_KNOWN = sa.select(passages.c.id).where(_BY_IDS)
_DUPLICATES = sa.select(passages.c.content_hash, passages.c.id).where(
    _OF_ORGANIZATION,
    passages.c.archive_id == sa.bindparam("archive"),
    passages.c.content_hash.in_(sa.bindparam("hashes", expanding=True)),
    LIVE,
)
_LAST = sa.select(sa.func.max(passages.c.position)).where(
    _OF_ORGANIZATION, passages.c.archive_id == sa.bindparam("archive")
)
_OWN, _NEAR = passages.alias("own"), passages.alias("near")
_NEIGHBOURS = sa.and_(
    _OWN.c.organization_id == sa.bindparam("org"),
    _NEAR.c.organization_id == sa.bindparam("org"),
    _NEAR.c.archive_id == _OWN.c.archive_id,
    _NEAR.c.position >= _OWN.c.position - sa.bindparam("reach"),
    _NEAR.c.position <= _OWN.c.position + sa.bindparam("reach"),
    _OWN.c.deleted_at.is_(None),
    _NEAR.c.deleted_at.is_(None),
)
_POSITION = (_NEAR.c.point_id, _NEAR.c.archive_id, _NEAR.c.strand, _NEAR.c.position, _NEAR.c.created_at)
_REQUESTED = _OWN.c.point_id.in_(sa.bindparam("points", expanding=True))
# An outer join whose only condition is on the points makes SQLite start from them instead of from all rows of the
# organization.
_AROUND = sa.select(*_POSITION).select_from(_OWN.outerjoin(_NEAR, _NEIGHBOURS)).where(_REQUESTED)
# PostgreSQL would read all rows of the organization once. The limit, which no passage exceeds, prevents that plan.
_LIMITED = sa.select(*_POSITION).where(_NEIGHBOURS).order_by(_NEAR.c.position).limit(sa.bindparam("limit")).lateral()
_AROUND_POSTGRESQL = sa.select(_LIMITED).select_from(_OWN.join(_LIMITED, sa.true())).where(_REQUESTED)


def encoded_tags(tags: Sequence[str]) -> str:
    """Returns tags as the column stores them."""
    return f"{SEPARATOR}{SEPARATOR.join(tags)}{SEPARATOR}" if tags else ""


def decoded_tags(stored: str) -> tuple[str, ...]:
    """Returns the tags of a column."""
    return tuple(stored.split(SEPARATOR)[1:-1])


def content_values(passage: Passage) -> dict[str, Any]:
    """Returns the columns of a passage that only depend on its content."""
    return {
        "tags": encoded_tags(passage.tags),
        "content_hash": content_hash(passage.text),
        "agent_id": passage.agent_id,
        "strand": strand_of(passage),
        "created_at": passage.created_at,
        "source": passage.source.name,
        "file_id": passage.file_id,
        "folder_id": passage.folder_id,
        "file_name": passage.file_name,
        "chunk_index": passage.chunk_index,
        "updated_at": passage.updated_at,
        "size": response_bytes(passage),
        "metadata": passage.metadata,
        "text": passage.text,
    }


def new_row(organization_id: str, passage: Passage, point_id: UUID, position: int) -> dict[str, Any]:
    """Returns the row of a new passage."""
    return {
        "organization_id": organization_id,
        "id": passage.id,
        "archive_id": passage.archive_id,
        "point_id": str(point_id),
        "position": position,
        **content_values(passage),
    }


def passage_from_row(row: sa.Row[Any]) -> Passage:
    """Returns the passage of a row. Without the columns of text and metadata, these are empty."""
    fields = row._mapping
    return Passage(
        id=row.id,
        archive_id=row.archive_id,
        text=fields.get("text", ""),
        tags=decoded_tags(row.tags),
        metadata=fields.get("metadata"),
        source=PassageSource[row.source],
        agent_id=row.agent_id,
        file_id=row.file_id,
        folder_id=row.folder_id,
        file_name=row.file_name,
        chunk_index=row.chunk_index,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def tombstone_values(now: datetime) -> dict[str, Any]:
    """Returns the columns of a deleted passage, without anything of its content."""
    emptied = dict.fromkeys(("agent_id", "file_id", "folder_id", "file_name", "chunk_index", "metadata"))
    return {
        "deleted_at": now,
        "tags": "",
        "content_hash": "",
        "strand": "",
        "source": "",
        "text": "",
        "size": 0,
        **emptied,
    }


def rows(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> list[sa.Row[Any]]:
    """Returns the rows of these passages, deleted ones included."""
    return _found(conn, _ROWS, organization_id, "ids", ids)


def live_rows(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> list[sa.Row[Any]]:
    """Returns the rows of the live ones among these passages."""
    return _found(conn, _LIVE_ROWS, organization_id, "ids", ids)


def rows_of_points(
    conn: sa.Connection, organization_id: str, points: Sequence[UUID], *, with_text: bool
) -> list[sa.Row[Any]]:
    """Returns the rows of the live passages with these points."""
    statement = _POINTS if with_text else _POINTS_WITHOUT_TEXT
    found = [
        row
        for some in chunks([str(point) for point in points])
        for row in conn.execute(statement, {"points": some}).all()
    ]
    return [row for row in found if row.organization_id == organization_id and row.deleted_at is None]


def known_ids(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> set[str]:
    """Returns those of the ids that a passage has or had."""
    return {row.id for row in _found(conn, _KNOWN, organization_id, "ids", ids)}


def duplicates(conn: sa.Connection, organization_id: str, archive_id: str, hashes: Sequence[str]) -> dict[str, str]:
    """Returns the ids of the archive's passages by the hash of their text."""
    found: dict[str, str] = {}
    for some in chunks(hashes):
        values = {"org": organization_id, "archive": archive_id, "hashes": some}
        found.update({row.content_hash: row.id for row in conn.execute(_DUPLICATES, values).all()})
    return found


def neighbours(
    conn: sa.Connection, organization_id: str, point_ids: Sequence[UUID], reach: int
) -> list[PassagePosition]:
    """Returns the positions of the live ones among these passages and of those up to `reach` before and after each."""
    known = {str(point): point for point in point_ids}
    found: dict[str | None, sa.Row[*tuple[Any, ...]]] = {}
    query = _AROUND if conn.dialect.name == "sqlite" else _AROUND_POSTGRESQL
    for some in chunks(list(known)):
        some_rows = conn.execute(
            query, {"org": organization_id, "points": some, "reach": reach, "limit": 2 * reach + 1}
        )
        found.update({row[0]: row for row in some_rows})
    found.pop(None, None)  # the neighbours of a deleted passage, or of one of another organization
    return [PassagePosition(known.get(point) or UUID(point), *rest) for point, *rest in found.values()]


def next_position(conn: sa.Connection, organization_id: str, archive_id: str) -> int:
    """Returns the position after the last passage of the archive."""
    return int(conn.scalar(_LAST, {"org": organization_id, "archive": archive_id}) or 0) + 1


def by_ids(organization_id: str, passage_ids: Sequence[str]) -> sa.ColumnElement[bool]:
    """Returns the condition that selects these passages."""
    return sa.and_(passages.c.organization_id == organization_id, passages.c.id.in_(passage_ids))


def filter_conditions(filter_: PassageFilter, dialect: str) -> Iterable[sa.ColumnElement[bool]]:
    """Yields the conditions of a filter, without those of its agent and archive."""
    columns = passages.c
    if filter_.tags:
        position = sa.func.instr if dialect == "sqlite" else sa.func.strpos
        each = [position(columns.tags, encoded_tags([tag])) > 0 for tag in filter_.tags]
        yield sa.and_(*each) if filter_.every_tag else sa.or_(*each)
    if filter_.file_id is not None:
        yield columns.file_id == filter_.file_id
    if filter_.folder_id is not None:
        yield columns.folder_id == filter_.folder_id
    if filter_.sources:
        yield columns.source.in_([source.name for source in filter_.sources])
    if filter_.since is not None:
        yield columns.created_at >= filter_.since
    if filter_.until is not None:
        yield columns.created_at < filter_.until


def chunks(values: Sequence[T], size: int = 500) -> list[Sequence[T]]:
    """Splits values into lists that fit into one statement."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def _found(
    conn: sa.Connection, statement: sa.Select[Any], organization_id: str, name: str, values: Sequence[str]
) -> list[sa.Row[Any]]:
    found: list[sa.Row[Any]] = []
    for some in chunks(values):
        found += conn.execute(statement, {"org": organization_id, name: some}).all()
    return found
