"""The rows of passages: their columns, their positions, the statements that find them and those around them."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import sqlalchemy as sa
from mnemesh_retrieval.ranking.scores import fingerprint
from mnemesh_types.archival import PassageSource
from sqlalchemy.dialects.postgresql import ARRAY

from mnemesh_archival.model.passages import (
    LINKED,
    Asking,
    Continuity,
    Passage,
    PassageFilter,
    PassagePosition,
    content_hash,
    cues_of,
    response_bytes,
    strand_of,
)
from mnemesh_archival.store.tables import passages

T = TypeVar("T")
SEPARATOR: Final = "\x1f"
"""Stands before and after each stored tag; no tag contains a control character."""

# Built once: building a statement costs more than running it.
LIVE = passages.c.deleted_at.is_(None)
_OF_ORGANIZATION = passages.c.organization_id == sa.bindparam("org")
_BY_IDS = sa.and_(_OF_ORGANIZATION, passages.c.id.in_(sa.bindparam("ids", expanding=True)))
_BY_POINTS = passages.c.point_id.in_(sa.bindparam("points", expanding=True))
_DERIVED: Final = frozenset({"content_hash", "position", "strand", "continuity", "speaker", "asking", "fingerprint"})
_GIVEN: Final = frozenset({"given_embedder", "given_vector"})
_CONTENT: Final = tuple(column for column in passages.c if column.name not in _DERIVED | _GIVEN)
_ROWS = sa.select(*_CONTENT).where(_BY_IDS)
_LIVE_ROWS = _ROWS.where(LIVE)
# The organization is compared later: with it, SQLite would use an index that begins with it.
_POINTS = sa.select(*_CONTENT).where(_BY_POINTS)
_POINTS_WITHOUT_TEXT = sa.select(*(column for column in _CONTENT if column.name not in {"text", "metadata"})).where(
    _BY_POINTS
)
_TEXTS = sa.select(passages.c.point_id, passages.c.text).where(_BY_POINTS)
_EQUAL = (
    sa.select(*_CONTENT)
    .where(_OF_ORGANIZATION, passages.c.fingerprint == sa.bindparam("fingerprint"), LIVE)
    .limit(sa.bindparam("limit"))
)
_EQUAL_IN = _EQUAL.where(passages.c.archive_id.in_(sa.bindparam("archives", expanding=True)))
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


def encoded_tags(tags: Sequence[str]) -> str:
    """Returns tags as the column stores them."""
    return f"{SEPARATOR}{SEPARATOR.join(tags)}{SEPARATOR}" if tags else ""


def decoded_tags(stored: str) -> tuple[str, ...]:
    """Returns the tags of a column."""
    return tuple(stored.split(SEPARATOR)[1:-1])


def content_values(passage: Passage) -> dict[str, Any]:
    """Returns the columns of a passage that only depend on its content."""
    cues = cues_of(passage.text)
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
        "speaker": cues.speaker,
        "asking": cues.asking.value,
        "fingerprint": fingerprint(passage.text),
    }


def new_row(
    organization_id: str, passage: Passage, point_id: UUID, position: int, continuity: Continuity
) -> dict[str, Any]:
    given = passage.given_vector
    return {
        "organization_id": organization_id,
        "id": passage.id,
        "archive_id": passage.archive_id,
        "point_id": str(point_id),
        "position": position,
        "continuity": continuity.value,
        "given_embedder": given.identity.handle if given is not None else None,
        "given_vector": given.values if given is not None else None,
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
    columns = ("agent_id", "file_id", "folder_id", "file_name", "chunk_index", "metadata", *_GIVEN)
    emptied = dict.fromkeys(columns)
    return {
        "deleted_at": now,
        "tags": "",
        "content_hash": "",
        "strand": "",
        "source": "",
        "text": "",
        "size": 0,
        "speaker": "",
        "asking": 0,
        "fingerprint": "",
        **emptied,
    }


def without_given_vector() -> dict[str, Any]:
    """Returns the columns of a passage whose text is no longer the one that its vector was made of."""
    return dict.fromkeys(_GIVEN)


def rows(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> list[sa.Row[Any]]:
    """Returns the rows of these passages, deleted ones included."""
    return _found(conn, _ROWS, organization_id, "ids", ids)


def live_rows(conn: sa.Connection, organization_id: str, ids: Sequence[str]) -> list[sa.Row[Any]]:
    """Returns the rows of the live ones among these passages."""
    return _found(conn, _LIVE_ROWS, organization_id, "ids", ids)


def selected(
    conn: sa.Connection, organization_id: str, archive_id: str, selection: Sequence[str] | str, limit: int
) -> list[sa.Row[Any]]:
    """Returns the rows of live passages of an archive: of the given ids, or at most `limit` of a file."""
    if not isinstance(selection, str):
        return [row for row in live_rows(conn, organization_id, selection) if row.archive_id == archive_id]
    of_file = (
        passages.c.organization_id == organization_id,
        passages.c.file_id == selection,
        passages.c.archive_id == archive_id,
    )
    return list(conn.execute(sa.select(*_CONTENT).where(*of_file, LIVE).limit(limit)).all())


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


def ids_in_archive(conn: sa.Connection, organization_id: str, archive_id: str, ids: Sequence[str]) -> set[str]:
    """Returns those of the ids that a live passage of an archive has."""
    return {row.id for row in live_rows(conn, organization_id, ids) if row.archive_id == archive_id}


def duplicates(conn: sa.Connection, organization_id: str, archive_id: str, hashes: Sequence[str]) -> dict[str, str]:
    """Returns the ids of the archive's passages by the hash of their text."""
    found: dict[str, str] = {}
    for some in chunks(hashes):
        values = {"org": organization_id, "archive": archive_id, "hashes": some}
        found.update({row.content_hash: row.id for row in conn.execute(_DUPLICATES, values).all()})
    return found


def texts(conn: sa.Connection, points: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the points, as text, and the texts of passages."""
    return [(point, text) for some in chunks(points) for point, text in conn.execute(_TEXTS, {"points": some})]


def equal(
    conn: sa.Connection, organization_id: str, archive_ids: Sequence[str] | None, fingerprint_: str, limit: int
) -> list[sa.Row[Any]]:
    """Returns the live passages with a fingerprint, in these archives or in all; at most `limit`."""
    values: dict[str, Any] = {"org": organization_id, "fingerprint": fingerprint_, "limit": limit}
    if archive_ids is None:
        return list(conn.execute(_EQUAL, values).all())
    found: list[sa.Row[Any]] = []
    for some in chunks(archive_ids):
        found += conn.execute(_EQUAL_IN, {**values, "archives": some}).all()
    return found[:limit]


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
    if filter_.file_ids:
        yield columns.file_id.in_(filter_.file_ids)
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


_OWN, _AT = passages.alias("own"), passages.alias("at")
_POSITION = (
    *(_AT.c.point_id, _AT.c.archive_id, _AT.c.strand, _AT.c.position, _AT.c.created_at),
    *(_AT.c.continuity, _AT.c.speaker, _AT.c.asking),
)
_AT_LIVE = _AT.c.deleted_at.is_(None)
_AT_ORGANIZATION = _AT.c.organization_id == sa.bindparam("org")


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
        _AT_ORGANIZATION,
        _AT.c.archive_id == _OWN.c.archive_id,
        _AT.c.position == _OWN.c.position,
        _AT_LIVE,
    )
    return (
        sa.select(*_POSITION).select_from(_OWN.outerjoin(_AT, of_own)).where(_among(_OWN.c.point_id, "points", dialect))
    )


def _in_archive(dialect: str) -> sa.Select[Any]:
    return sa.select(*_POSITION).where(
        _AT_ORGANIZATION,
        _AT.c.archive_id == sa.bindparam("archive"),
        _among(_AT.c.position, "positions", dialect),
        _AT_LIVE,
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
        _AT_ORGANIZATION,
        sa.tuple_(_AT.c.archive_id, _AT.c.position).in_(sa.bindparam("places", expanding=True)),
        _AT_LIVE,
    ),
    "postgresql": sa.select(*_POSITION).select_from(
        _PLACES.join(
            _AT,
            sa.and_(
                _AT_ORGANIZATION,
                _AT.c.archive_id == _PLACES.c.archive_id,
                _AT.c.position == _PLACES.c.position,
                _AT_LIVE,
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
