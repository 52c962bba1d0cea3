"""The statements on the rows of word segments, the segments that were read last, and the agents that have changed."""

from __future__ import annotations

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from mnemesh_kit.sql import after_commit
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.sql.readahead import read_ahead

from mnemesh_recall.store.fulltext.segments import (
    KEYS_PER_SEGMENT,
    Bucket,
    Documents,
    Postings,
    Segment,
    joined,
    packed,
)
from mnemesh_recall.store.tables import unindexed_agents, word_documents, word_postings, word_segments, word_tail

LEAST_CHANGES: Final = 16
"""The number of changed documents of an agent after which its tail is looked at."""


class ChangedAgents:
    """Counts changed documents by agent, and long tails that searches find.

    SQLite's readers are threads.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, agent_id: str, count: int) -> None:
        """Notes changed documents of an agent."""
        with self._lock:
            self._counts[agent_id] += count

    def take(self) -> list[str]:
        """Returns the agents with at least LEAST_CHANGES changes, and forgets these."""
        if not self._counts:
            return []
        with self._lock:
            found = [agent_id for agent_id, count in self._counts.items() if count >= LEAST_CHANGES]
            for agent_id in found:
                del self._counts[agent_id]
        return found


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
_NOTE: Final = Prepared(
    sa.text(
        "INSERT INTO word_tail (agent_id, row_id) VALUES (:agent, :row_id)"
        " ON CONFLICT (agent_id, row_id) DO UPDATE SET row_id = excluded.row_id"
    )
)
_TAIL: Final = (
    sa.select(_t.row_id).where(_t.agent_id == _AGENT).order_by(_t.row_id).limit(sa.bindparam("most", type_=sa.Integer))
)
_REMOVE_TAIL: Final = sa.delete(word_tail).where(_t.agent_id == _AGENT, _t.row_id.in_(_IDS))
# All that a search of an agent needs first, in one statement: rows with a kind and up to four numbers or a text.
_OVERVIEW: Final = Prepared(
    sa.text(
        "SELECT 0 AS kind, message_count AS a, 0 AS b, 0 AS c, 0 AS d, '' AS name FROM agents"
        " WHERE agent_id = :agent AND organization_id = :organization"
        " UNION ALL SELECT 1, id, documents, buckets, parts, '' FROM word_segments WHERE agent_id = :agent"
        " UNION ALL SELECT 2, row_id, 0, 0, 0, '' FROM"
        " (SELECT row_id FROM word_tail WHERE agent_id = :agent ORDER BY row_id LIMIT CAST(:most AS INTEGER)) AS tail"
        " UNION ALL SELECT 3, 0, 0, 0, 0, language FROM word_languages WHERE organization_id = :organization"
        " UNION ALL SELECT 4, 0, 0, 0, 0, '' FROM unindexed_agents WHERE agent_id = :agent AND since < :before"
        " UNION ALL SELECT 4, 0, 0, 0, 0, '' FROM word_rebuilds WHERE kind = 'agent' AND subject = :agent"
    ).bindparams(sa.bindparam("before", type_=unindexed_agents.c.since.type))
)
_SEGMENTS: Final = sa.select(_s.id, _s.documents, _s.buckets, _s.parts).where(_s.agent_id == _AGENT).order_by(_s.id)
_FIRST: Final[sa.BindParameter[Any]] = sa.bindparam("first", type_=sa.BigInteger)
_END: Final[sa.BindParameter[Any]] = sa.bindparam("end", type_=sa.BigInteger)
# The segments, parts of documents and buckets of postings that a search reads. The number of keys does not change the
# text of the statement, so that connections need not prepare it again.
_CONTENTS: Final = {
    dialect: Prepared(
        sa.text(
            "SELECT 0 AS kind, id AS key, removed AS data, labels FROM word_segments"  # noqa: S608
            f" WHERE id {keys.format('segments')}"
            f" UNION ALL SELECT 1, key, data, '' FROM word_documents WHERE key {keys.format('parts')}"
            f" UNION ALL SELECT 2, key, data, '' FROM word_postings WHERE key {keys.format('buckets')}"
        )
    )
    for dialect, keys in {
        "sqlite": "IN (SELECT value FROM json_each(:{}))",
        "postgresql": "= ANY (CAST(:{} AS bigint[]))",
    }.items()
}
_ALL_POSTINGS: Final = sa.select(_p.data).where(_p.key >= _FIRST, _p.key < _END)
_DELETE_OF_SEGMENT: Final = tuple(
    sa.delete(table).where(table.c.key >= _FIRST, table.c.key < _END) for table in (word_documents, word_postings)
)
_DELETE: Final = sa.delete(word_segments).where(_s.id.in_(_IDS))
_INSERT: Final = sa.insert(word_segments).returning(_s.id)
_INSERT_DOCUMENTS: Final = sa.insert(word_documents)
_INSERT_POSTINGS: Final = sa.insert(word_postings)
_LONG_TAILS: Final = (
    sa.select(_t.agent_id).group_by(_t.agent_id).having(sa.func.count() >= sa.bindparam("least", type_=sa.Integer))
)
_WITH_SEGMENTS: Final = sa.select(_s.agent_id).union(sa.select(_t.agent_id))


class SegmentsReplaced(Exception):
    """Segments were replaced after they were listed. Only reads without a transaction can meet this."""


class SegmentRow(NamedTuple):
    """A segment without its contents."""

    id: int
    documents: int
    """The number of its documents."""
    buckets: int
    parts: int
    """The number of rows of its postings, and of its documents."""


PART_BYTES: Final = {"sqlite": 4_000}
"""The size of a part of documents: what fits into a page of the engine. Others have one part, of any size."""


class Overview(NamedTuple):
    """What a search of an agent reads first."""

    size: int | None
    """The number of messages of the agent; None if the organization has no such agent."""
    segments: list[SegmentRow]
    """The oldest first."""
    tail: list[int]
    """See `tail`."""
    languages: list[str]
    """See `word_languages.stored_languages`."""
    is_complete: bool
    """False if messages of the agent are not indexed yet, or have the words of an earlier analysis."""


def overview(conn: sa.Connection, organization_id: str, agent_id: str, most: int, before: datetime) -> Overview:
    """Reads the segments of an agent, its tail up to a length, and the languages of the organization.

    Messages that were committed later than `before` need not be indexed for it to be complete.
    """
    size, segments, row_ids, languages, is_complete = None, [], [], [], True
    parameters = {"organization": organization_id, "agent": agent_id, "most": most, "before": before}
    for kind, number, documents, buckets, parts, name in _OVERVIEW.all(conn, parameters):
        match kind:
            case 0:
                size = number
            case 1:
                segments.append(SegmentRow(number, documents, buckets, parts))
            case 2:
                row_ids.append(number)
            case 3:
                languages.append(name)
            case _:
                is_complete = False
    return Overview(size, sorted(segments), sorted(row_ids), sorted(languages), is_complete or size is None)


def note(conn: sa.Connection, changed: ChangedAgents, documents: Iterable[tuple[str, int]]) -> None:
    """Adds documents that were written or removed to the tails of their agents: agent id and row id.

    `changed` counts them after the commit. Who looks at the tail then finds them there.
    """
    rows = [{"agent": agent_id, "row_id": row_id} for agent_id, row_id in documents]
    if rows:
        _NOTE.change_each(conn, rows)
        for agent_id, count in Counter(row["agent"] for row in rows).items():
            after_commit(conn, partial(changed.add, str(agent_id), count))


def tail(conn: sa.Connection, agent_id: str, most: int) -> list[int]:
    """Returns the row ids of documents that changed after the segments of an agent were written, oldest first."""
    return list(conn.execute(_TAIL, {"agent": agent_id, "most": most}).scalars())


def remove_from_tail(conn: sa.Connection, agent_id: str, row_ids: Sequence[int]) -> None:
    """Removes documents from the tail, because segments have them."""
    conn.execute(_REMOVE_TAIL, {"agent": agent_id, "ids": list(row_ids)})


def segments_of(conn: sa.Connection, agent_id: str) -> list[SegmentRow]:
    """Returns the segments of an agent, the oldest first."""
    return list(map(SegmentRow._make, conn.execute(_SEGMENTS, {"agent": agent_id})))


def expect(conn: sa.Connection, segments: Iterable[SegmentRow], bucket_keys: Iterable[int]) -> None:
    """Asks for the pages of the documents of segments, and of buckets, before they are read."""
    read_ahead(conn, word_documents, _part_keys(segments))
    read_ahead(conn, word_postings, bucket_keys, overflow=True)


def contents_of(
    conn: sa.Connection, segments: Sequence[SegmentRow], bucket_keys: Collection[int], known: Collection[int] = ()
) -> tuple[dict[int, Documents], dict[int, Bucket]]:
    """Returns the documents of segments, by id, and the buckets that exist; see `row_key`.

    Args:
        conn: the connection.
        segments: the segments.
        bucket_keys: the keys of their buckets.
        known: the ids of those whose documents are not needed.

    Raises:
        SegmentsReplaced: another transaction has replaced a segment.
    """
    unknown = [row for row in segments if row.id not in known]
    if not unknown and not bucket_keys:
        return {}, {}
    keys: dict[str, Any] = {
        "segments": [row.id for row in segments], "parts": _part_keys(unknown), "buckets": list(bucket_keys),
    }  # fmt: skip
    if conn.dialect.name == "sqlite":
        keys = {name: json.dumps(numbers) for name, numbers in keys.items()}
    labels: dict[int, tuple[str, bytes]] = {}
    data: dict[int, list[tuple[int, bytes]]] = {}
    buckets: dict[int, Bucket] = {}
    for kind, key, value, names in _CONTENTS[conn.dialect.name].all(conn, keys):
        match kind:
            case 0:
                labels[key] = (names, value)
            case 1:
                data.setdefault(key // KEYS_PER_SEGMENT, []).append((key, value))
            case _:
                buckets[key] = Bucket(value)
    if len(labels) < len(segments):
        raise SegmentsReplaced
    headers = {row.id: b"".join(value for _, value in sorted(data[row.id])) for row in unknown}
    documents = {id_: Documents.from_row(labels[id_][0], of_id, labels[id_][1]) for id_, of_id in headers.items()}
    return documents, buckets


def row_key(segment_id: int, number: int) -> int:
    """Returns the key of a bucket of postings, or of a part of documents."""
    return segment_id * KEYS_PER_SEGMENT + number


def read(conn: sa.Connection, segments: Sequence[SegmentRow]) -> list[Segment]:
    """Returns whole segments, in this order."""
    documents, _ = contents_of(conn, segments, ())
    return [Segment(documents[row.id], joined(_all_postings(conn, row.id))) for row in segments]


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


def _part_keys(segments: Iterable[SegmentRow]) -> list[int]:
    return [row_key(row.id, part) for row in segments for part in range(row.parts)]


def _range(segment_id: int) -> dict[str, int]:
    return {"first": row_key(segment_id, 0), "end": row_key(segment_id + 1, 0)}


MOST_BYTES: Final = 32 << 20


class DocumentCache:
    """Documents by segment id, at most 32 MB. SQLite's readers are threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[int, Documents] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, ids: Iterable[int]) -> dict[int, Documents]:
        """Returns those that are cached."""
        with self._lock:
            found = {id_: self._kept[id_] for id_ in ids if id_ in self._kept}
            for id_ in found:
                self._kept.move_to_end(id_)
        return found

    def add(self, documents: Mapping[int, Documents]) -> None:
        """Adds documents, and drops the ones that were used least recently."""
        with self._lock:
            for id_, each in documents.items():
                if id_ not in self._kept and each.size <= self._most_bytes:
                    self._kept[id_] = each
                    self._bytes += each.size
            while self._bytes > self._most_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.size
