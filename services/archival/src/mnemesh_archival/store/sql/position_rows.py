"""The positions of passages in their archives, and of those around them in their dialogues and documents.

Every statement reads the index on positions only; the table has the archive and the position of a point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from mnemesh_archival.model.continuity import LINKED, Asking, Continuity
from mnemesh_archival.model.passages import PassagePosition
from mnemesh_archival.store.sql.passage_rows import chunks
from mnemesh_archival.store.sql.tables import passages

_OWN, _AT = passages.alias("own"), passages.alias("at")
_POSITION = (
    *(_AT.c.point_id, _AT.c.archive_id, _AT.c.strand, _AT.c.position, _AT.c.created_at),
    *(_AT.c.continuity, _AT.c.speaker, _AT.c.asking),
)
_LIVE = _AT.c.deleted_at.is_(None)
_OF_ORGANIZATION = _AT.c.organization_id == sa.bindparam("org")


def _encoded(conn: sa.Connection, values: Sequence[Any]) -> Any:
    """Returns values as one parameter, so that the engine prepares a statement once whatever their number."""
    return json.dumps(list(values)) if conn.dialect.name == "sqlite" else list(values)


def _among(column: sa.Column[Any], name: str, dialect: str) -> sa.ColumnElement[bool]:
    if dialect == "sqlite":
        return column.in_(sa.select(sa.func.json_each(sa.bindparam(name)).table_valued("value").c.value))
    return column == sa.any_(sa.cast(sa.bindparam(name), ARRAY(column.type)))


def _of_points(dialect: str) -> sa.Select[Any]:
    # An outer join whose only condition is on the points makes SQLite start from them.
    of_own = sa.and_(
        _OWN.c.organization_id == sa.bindparam("org"),
        _OF_ORGANIZATION,
        _AT.c.archive_id == _OWN.c.archive_id,
        _AT.c.position == _OWN.c.position,
        _LIVE,
    )
    return (
        sa.select(*_POSITION).select_from(_OWN.outerjoin(_AT, of_own)).where(_among(_OWN.c.point_id, "points", dialect))
    )


def _in_archive(dialect: str) -> sa.Select[Any]:
    return sa.select(*_POSITION).where(
        _OF_ORGANIZATION,
        _AT.c.archive_id == sa.bindparam("archive"),
        _among(_AT.c.position, "positions", dialect),
        _LIVE,
    )


_DIALECTS: Final = ("sqlite", "postgresql")
_OF_POINTS = {dialect: _of_points(dialect) for dialect in _DIALECTS}
_IN_ARCHIVE = {dialect: _in_archive(dialect) for dialect in _DIALECTS}
_PLACES = (
    sa.func.unnest(
        sa.cast(sa.bindparam("archives"), ARRAY(sa.Text)), sa.cast(sa.bindparam("positions"), ARRAY(sa.BigInteger))
    )
    .table_valued("archive_id", "position", name="places")
    .render_derived()
)
_IN_ARCHIVES = {
    "sqlite": sa.select(*_POSITION).where(
        _OF_ORGANIZATION,
        sa.tuple_(_AT.c.archive_id, _AT.c.position).in_(sa.bindparam("places", expanding=True)),
        _LIVE,
    ),
    "postgresql": sa.select(*_POSITION).select_from(
        _PLACES.join(
            _AT,
            sa.and_(
                _OF_ORGANIZATION, _AT.c.archive_id == _PLACES.c.archive_id, _AT.c.position == _PLACES.c.position, _LIVE
            ),
        )
    ),
}
_MAX_PLACES: Final = 5_000
_CONTINUITIES: Final = tuple(Continuity)
_ASKING: Final = tuple(Asking)

Place = tuple[str, int]


def neighbours(
    conn: sa.Connection, organization_id: str, point_ids: Sequence[UUID], reach: int
) -> list[PassagePosition]:
    """Returns the positions of the live ones among these passages, and of those up to `reach` before and after each
    that belong to the same dialogue or document."""
    known = {str(point): point for point in point_ids}
    own = [
        _position(row, known)
        for some in chunks(list(known))
        for row in conn.execute(_OF_POINTS[conn.dialect.name], {"org": organization_id, "points": _encoded(conn, some)})
        if row[0] is not None  # one that was deleted, or of another organization
    ]
    places = {(each.archive_id, each.position) for each in own}
    around = {
        (each.archive_id, each.position + step)
        for each in own
        if each.continuity in LINKED
        for step in range(-reach, reach + 1)
    }
    beside = (_position(row, known) for row in _at(conn, organization_id, sorted(around - places)))
    return [*own, *(each for each in beside if each.continuity in LINKED)]


def _at(conn: sa.Connection, organization_id: str, places: Sequence[Place]) -> Iterable[sa.Row[*tuple[Any, ...]]]:
    """Yields the rows at these places, in one statement unless they are very many."""
    archives = {archive for archive, _ in places}
    for some in chunks(places, _MAX_PLACES):
        positions = [position for _, position in some]
        if len(archives) == 1:
            of = {"org": organization_id, "archive": some[0][0], "positions": _encoded(conn, positions)}
            yield from conn.execute(_IN_ARCHIVE[conn.dialect.name], of)
        elif conn.dialect.name == "sqlite":
            yield from conn.execute(_IN_ARCHIVES["sqlite"], {"org": organization_id, "places": some})
        else:
            places_of = {"archives": [archive for archive, _ in some], "positions": positions}
            yield from conn.execute(_IN_ARCHIVES["postgresql"], {"org": organization_id, **places_of})


def _position(row: sa.Row[*tuple[Any, ...]], known: dict[str, UUID]) -> PassagePosition:
    point, archive, strand, position, created_at, continuity, speaker, asking = row
    return PassagePosition(
        known.get(point) or UUID(point),
        archive,
        strand,
        position,
        created_at,
        _CONTINUITIES[continuity],
        speaker,
        _ASKING[asking],
    )
