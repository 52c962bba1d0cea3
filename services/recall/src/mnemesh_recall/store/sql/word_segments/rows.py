"""The statements on the rows of word segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql import after_commit
from mnemesh_kit.sql.readahead import read_ahead

from mnemesh_recall.store.sql.tables import agents, word_documents, word_postings, word_segments, word_tail
from mnemesh_recall.store.sql.word_segments.changed import ChangedAgents
from mnemesh_recall.store.sql.word_segments.documents import Documents, packed
from mnemesh_recall.store.sql.word_segments.format import KEYS_PER_SEGMENT, Bucket, Postings, Segment, joined

_s = word_segments.c
_d = word_documents.c
_p = word_postings.c
_t = word_tail.c
_AGENT: Final[sa.BindParameter[Any]] = sa.bindparam("agent", type_=sa.Text)
_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("ids", expanding=True)

# A statement that is built for each call would take longer to build than to run.
#
# A row that the tail already has is updated with its own value. PostgreSQL then refuses this transaction or the one
# that moves this row to a segment. Otherwise, that one could read the document as it was, and remove its row.
_NOTE: Final = sa.text(
    "INSERT INTO word_tail (agent_id, row_id) VALUES (:agent, :row_id)"
    " ON CONFLICT (agent_id, row_id) DO UPDATE SET row_id = excluded.row_id"
)
_TAIL: Final = (
    sa.select(_t.row_id).where(_t.agent_id == _AGENT).order_by(_t.row_id).limit(sa.bindparam("most", type_=sa.Integer))
)
_REMOVE_TAIL: Final = sa.delete(word_tail).where(_t.agent_id == _AGENT, _t.row_id.in_(_IDS))
_SEGMENTS: Final = sa.select(_s.id, _s.documents, _s.buckets, _s.parts).where(_s.agent_id == _AGENT).order_by(_s.id)
_DESCRIBED: Final = sa.select(_s.id, _s.labels, _s.removed).where(_s.id.in_(_IDS))
_FIRST: Final[sa.BindParameter[Any]] = sa.bindparam("first", type_=sa.BigInteger)
_END: Final[sa.BindParameter[Any]] = sa.bindparam("end", type_=sa.BigInteger)
_DOCUMENTS: Final = sa.select(_d.data).where(_d.key >= _FIRST, _d.key < _END).order_by(_d.key)
_POSTINGS: Final = sa.select(_p.key, _p.data).where(_p.key.in_(_IDS))
_ALL_POSTINGS: Final = sa.select(_p.data).where(_p.key >= _FIRST, _p.key < _END)
_DELETE_OF_SEGMENT: Final = tuple(
    sa.delete(table).where(table.c.key >= _FIRST, table.c.key < _END) for table in (word_documents, word_postings)
)
_DELETE: Final = sa.delete(word_segments).where(_s.id.in_(_IDS))
_INSERT: Final = sa.insert(word_segments).returning(_s.id)
_INSERT_DOCUMENTS: Final = sa.insert(word_documents)
_INSERT_POSTINGS: Final = sa.insert(word_postings)
_SIZE: Final = sa.select(agents.c.message_count).where(
    agents.c.agent_id == _AGENT, agents.c.organization_id == sa.bindparam("organization", type_=sa.Text)
)
_LONG_TAILS: Final = (
    sa.select(_t.agent_id).group_by(_t.agent_id).having(sa.func.count() >= sa.bindparam("least", type_=sa.Integer))
)
_WITH_SEGMENTS: Final = sa.select(_s.agent_id).union(sa.select(_t.agent_id))

SegmentRow = sa.Row[int, int, int, int]
"""The id of a segment, and its numbers of documents, of buckets and of parts."""

PART_BYTES: Final = {"sqlite": 4_000}
"""The size of a part of documents: what fits into a page of the engine. Others have one part, of any size."""


def message_count(conn: sa.Connection, organization_id: str, agent_id: str) -> int | None:
    """Returns the number of messages of an agent; None if the organization has no such agent."""
    found: int | None = conn.execute(_SIZE, {"agent": agent_id, "organization": organization_id}).scalar()
    return found


def note(conn: sa.Connection, changed: ChangedAgents, documents: Iterable[tuple[str, int]]) -> None:
    """Adds documents that were written or removed to the tails of their agents: agent id and row id.

    `changed` counts them after the commit. Who looks at the tail then finds them there.
    """
    rows = [{"agent": agent_id, "row_id": row_id} for agent_id, row_id in documents]
    if rows:
        conn.execute(_NOTE, rows)
        for agent_id, count in Counter(row["agent"] for row in rows).items():
            after_commit(conn, partial(changed.add, str(agent_id), count))


def tail(conn: sa.Connection, agent_id: str, most: int) -> list[int]:
    """Returns the row ids of documents that changed after the segments of an agent were written, oldest first."""
    return list(conn.execute(_TAIL, {"agent": agent_id, "most": most}).scalars())


def remove_from_tail(conn: sa.Connection, agent_id: str, row_ids: Sequence[int]) -> None:
    """Removes documents from the tail, because segments have them."""
    conn.execute(_REMOVE_TAIL, {"agent": agent_id, "ids": list(row_ids)})


def segments_of(conn: sa.Connection, agent_id: str) -> Sequence[SegmentRow]:
    """Returns the segments of an agent, the oldest first."""
    return conn.execute(_SEGMENTS, {"agent": agent_id}).all()


def expect(conn: sa.Connection, segments: Iterable[SegmentRow], bucket_keys: Iterable[int]) -> None:
    """Asks for the pages of the documents of segments, and of buckets, before they are read."""
    parts = [row_key(row.id, part) for row in segments for part in range(row.parts)]
    read_ahead(conn, word_documents, parts)
    read_ahead(conn, word_postings, bucket_keys, overflow=True)


def documents_of(conn: sa.Connection, ids: Collection[int]) -> dict[int, Documents]:
    """Returns the documents of segments, by id."""
    rows = conn.execute(_DESCRIBED, {"ids": list(ids)}).all() if ids else ()
    return {
        id_: Documents.from_row(labels, b"".join(conn.execute(_DOCUMENTS, _range(id_)).scalars()), removed)
        for id_, labels, removed in rows
    }


def buckets_of(conn: sa.Connection, keys: Collection[int]) -> dict[int, Bucket]:
    """Returns the buckets that exist; see `row_key`."""
    rows = conn.execute(_POSTINGS, {"ids": list(keys)}) if keys else ()
    return {key: Bucket(data) for key, data in rows}


def row_key(segment_id: int, number: int) -> int:
    """Returns the key of a bucket of postings, or of a part of documents."""
    return segment_id * KEYS_PER_SEGMENT + number


def read(conn: sa.Connection, ids: Sequence[int]) -> list[Segment]:
    """Returns whole segments, in the order of ids."""
    documents = documents_of(conn, ids)
    return [Segment(documents[id_], joined(_all_postings(conn, id_))) for id_ in ids]


def insert(conn: sa.Connection, agent_id: str, segment: Segment) -> int:
    """Stores a segment. Returns its id, which is larger than those of all earlier segments."""
    headers = packed(segment.documents.columns)
    size = PART_BYTES.get(conn.dialect.name, len(headers))
    parts = [headers[start : start + size] for start in range(0, len(headers), size)]
    values = {
        "agent_id": agent_id,
        "documents": len(segment.documents),
        "buckets": segment.buckets,
        "parts": len(parts),
        **segment.documents.to_row(),
    }
    id_ = int(conn.execute(_INSERT, values).scalar_one())
    conn.execute(_INSERT_DOCUMENTS, [{"key": row_key(id_, part), "data": data} for part, data in enumerate(parts)])
    postings = [{"key": row_key(id_, bucket), "data": data} for bucket, data in segment.rows()]
    if postings:
        conn.execute(_INSERT_POSTINGS, postings)
    return id_


def delete(conn: sa.Connection, ids: Sequence[int]) -> None:
    """Deletes segments."""
    for id_ in ids:
        for statement in _DELETE_OF_SEGMENT:
            conn.execute(statement, _range(id_))
    if ids:
        conn.execute(_DELETE, {"ids": list(ids)})


def delete_agent(conn: sa.Connection, agent_id: str) -> None:
    """Deletes all segments and the tail of an agent."""
    delete(conn, [row.id for row in segments_of(conn, agent_id)])
    conn.execute(sa.delete(word_tail).where(_t.agent_id == agent_id))


def delete_all(conn: sa.Connection) -> None:
    """Deletes the segments and tails of all agents."""
    for table in (word_segments, word_documents, word_postings, word_tail):
        conn.execute(sa.delete(table))


def agents_with_tails(conn: sa.Connection, least: int) -> list[str]:
    """Returns the agents with at least so many documents in their tails. Reads all tails."""
    return list(conn.execute(_LONG_TAILS, {"least": least}).scalars())


def agents_with_segments(conn: sa.Connection) -> list[str]:
    """Returns the agents with a segment or a tail. Reads all of them."""
    return list(conn.execute(_WITH_SEGMENTS).scalars())


def _all_postings(conn: sa.Connection, segment_id: int) -> list[Postings]:
    return [Bucket(data).postings() for data in conn.execute(_ALL_POSTINGS, _range(segment_id)).scalars()]


def _range(segment_id: int) -> dict[str, int]:
    return {"first": row_key(segment_id, 0), "end": row_key(segment_id + 1, 0)}
