"""The records of an index, and the outbox of their changes."""

from collections.abc import Collection as AbstractCollection
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock

from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.filters import Filter
from mnemesh_retrieval.index import Collection, Payload


class ChangeKind(StrEnum):
    """The kind of subject of a change."""

    RECORD = "record"
    """One record was stored, changed or deleted."""
    GROUP = "group"
    """All records of a group were deleted, and none of them is ever stored again."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the outbox: the index may differ from a record, or from all records of a group."""

    row_id: int
    collection: str
    """The key of the collection, as the service registered it."""
    kind: ChangeKind
    subject_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one replica to apply changes, until a time. Other replicas leave them alone until then."""

    instance_id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """The current state of a record, as the index should have it."""

    text: str
    """The text to embed."""
    payload: Payload = field(default_factory=dict)
    words: str = ""
    """The text that words are matched against, in an index with words."""
    vector: Vector | None = None
    """A vector of `text` that the collection's embedder made earlier: the text is not embedded again."""


class Source(Protocol):
    """The records of one collection, from which its points are derived. A service implements it over its stores.

    A subject is the id of a record in the outbox; every subject has exactly one point id.
    """

    @property
    def schema(self) -> Collection:
        """The collection in the index. If the index has none of that name, it is created and filled."""

    @property
    def embedder(self) -> Embedder:
        """The embedder of the collection."""

    @property
    def words_version(self) -> str | None:
        """The version of the analysis of `Record.words`; None in an index without words.

        If the points of the collection have words of another version, these are replaced in the background.
        """

    @property
    def keep_without_vector(self) -> bool:
        """True keeps the point of a record without a vector, so that words find it; False deletes the point."""

    async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
        """Returns the current records of these subjects. One that is gone, or belongs elsewhere, has no entry."""

    def point_id(self, subject: str) -> UUID:
        """Returns the point id of a subject."""

    def subject_of(self, point_id: UUID) -> str:
        """Returns the subject of a point that has no record, so that a change can delete it."""

    def group_filter(self, group: str) -> Filter:
        """Returns the filter for all points of a group."""

    async def list_subjects(self, after: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """Returns pairs of a position and a subject, of all records of the collection, in the order of positions.

        Args:
            after: the position after which to continue; None for the beginning. Records that are stored later may be
                before it: they have changes of their own.
            limit: the largest number.
        """

    async def find_existing(self, points: Sequence[UUID]) -> AbstractCollection[UUID]:
        """Returns those of the points that have a record in the collection."""

    async def count(self) -> int:
        """Returns the number of records of the collection."""


_ROW_ID: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


@dataclass(frozen=True, slots=True)
class IndexTables:
    changes: sa.Table
    """`index_outbox`: a row says that the index may differ from the record of a subject in a collection."""
    holders: sa.Table
    """`index_holders`: for each collection, the replica that checks or rebuilds it, and the version of its
    words; and the last flushed state."""


def outbox_tables(metadata: sa.MetaData) -> IndexTables:
    """Adds the tables of the outbox to the metadata of a service. A revision of the service creates them."""
    changes = sa.Table(
        "index_outbox",
        metadata,
        sa.Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        # The replica that applies the change; only where several replicas share an index.
        sa.Column("claimed_by", sa.Text),
        sa.Column("claimed_until", UtcDateTime),
        sa.Index("ix_index_outbox_subject", "subject_id"),
        # SQLite would give the ids of deleted rows to new ones.
        sqlite_autoincrement=True,
        info={"derived": True},
    )
    holders = sa.Table(
        "index_holders",
        metadata,
        sa.Column("collection", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    return IndexTables(changes, holders)


_IDS_PER_STATEMENT: Final = 500
_MARK: Final = "(mark)"
_WORDS: Final = "(words) "
"""Begins the names of the rows with the versions of words."""
"""The row of `index_holders` with the name of the last flushed state."""


def change_rows(
    collection: str, subjects: Sequence[str], now: datetime, kind: ChangeKind = ChangeKind.RECORD
) -> list[dict[str, Any]]:
    """Returns rows for `index_outbox`, for a service that inserts them with a statement of its own."""
    return [{"collection": collection, "kind": kind.value, "subject_id": id_, "created_at": now} for id_ in subjects]


def add_changes(
    conn: sa.Connection,
    tables: IndexTables,
    collection: str,
    subjects: Sequence[str],
    now: datetime,
    *,
    claim: Claim | None = None,
) -> tuple[Change, ...]:
    """Adds changes of records that were stored, changed or deleted in this transaction.

    Args:
        conn: the connection of the transaction.
        tables: the tables of the outbox.
        collection: the key of the collection.
        subjects: the ids of the records.
        now: the current time.
        claim: the claim of the caller, who will apply the changes at once with `Indexer.apply`.

    Returns:
        The changes, in the order of `subjects`.
    """
    if not subjects:
        return ()
    claimed = {"claimed_by": claim.instance_id, "claimed_until": claim.until} if claim is not None else {}
    rows = [{**row, **claimed} for row in change_rows(collection, subjects, now)]
    return tuple(
        Change(row_id, collection, ChangeKind.RECORD, subject, now)
        for row_id, subject in zip(_inserted(conn, tables.changes, rows), subjects, strict=True)
    )


def _inserted(conn: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> Sequence[int]:
    """Inserts rows and returns their ids, in order."""
    row_id = table.c.row_id
    if conn.dialect.name != "sqlite":
        statement = sa.insert(table).returning(row_id, sort_by_parameter_order=True)
        return list(conn.execute(statement, rows).scalars())
    # Nobody else writes meanwhile, so the ids of one statement follow each other: RETURNING would cost more.
    conn.execute(sa.insert(table), rows)
    last: int = conn.execute(sa.select(sa.func.max(row_id))).scalar_one()
    return range(last - len(rows) + 1, last + 1)


def add_group(conn: sa.Connection, tables: IndexTables, collection: str, group: str, now: datetime) -> None:
    """Adds the change that all records of a group were deleted in this transaction, and none is ever stored again."""
    conn.execute(sa.insert(tables.changes), change_rows(collection, [group], now, ChangeKind.GROUP))


class Outbox:
    """The changes that the index may not have on its stable storage, of all collections of a service.

    A change is written in the transaction of the record. It is deleted only after the index has flushed it.
    """

    def __init__(self, database: Database, tables: IndexTables, clock: Clock) -> None:
        self._database = database
        self._tables = tables
        self._clock = clock
        c = tables.changes.c
        self._columns = (c.row_id, c.collection, c.kind, c.subject_id, c.created_at)
        # Built once, because every write of a service is followed by these reads.
        of_collections = c.collection.in_(sa.bindparam("collections", expanding=True))
        self._oldest = (
            sa.select(*self._columns)
            .where(c.row_id > sa.bindparam("after", type_=c.row_id.type))
            .order_by(c.row_id)
            .limit(sa.bindparam("most", type_=sa.Integer))
        )
        self._oldest_of: dict[frozenset[str] | None, Prepared[sa.Select[Any]]] = {}
        self._free = (
            sa.select(c.row_id)
            .where(_is_free(c.claimed_until, sa.bindparam("now", type_=c.claimed_until.type)), of_collections)
            .order_by(c.row_id)
            .limit(sa.bindparam("most", type_=sa.Integer))
        )

    async def read(self, after: int, limit: int, collections: AbstractCollection[str] | None = None) -> list[Change]:
        """Returns the oldest changes with a row id above `after`, claimed or not; of all collections if None."""
        statement, parameters = self._read_statement(collections), {"after": after, "most": limit}
        rows = await self._database.read(lambda conn: statement.all(conn, parameters), name="index_outbox.read")
        return [_change(row) for row in rows]

    def _read_statement(self, collections: AbstractCollection[str] | None) -> Prepared[sa.Select[Any]]:
        """Returns the prepared read of some collections, of which a service has few."""
        key = None if collections is None else frozenset(collections)
        if key not in self._oldest_of:
            c = self._tables.changes.c.collection
            some = self._oldest if key is None else self._oldest.where(sa.or_(*(c == each for each in sorted(key))))
            self._oldest_of[key] = Prepared(some)
        return self._oldest_of[key]

    async def claim(
        self, instance_id: str, duration: timedelta, limit: int, collections: AbstractCollection[str]
    ) -> list[Change]:
        """Claims the oldest changes of these collections that no replica has claimed."""
        c, now = self._tables.changes.c, self._clock.now()
        parameters = {"now": now, "most": limit, "collections": list(collections)}
        # Chosen in a transaction of its own, which conflicts with no commit of a record.
        ids = await self._database.read(
            lambda conn: conn.execute(self._free, parameters).scalars().all(), name="index_outbox.free"
        )
        if not ids:
            return []
        # With all other changes of the same records: two replicas with changes of one record would repeat them.
        same = sa.select(c.subject_id).where(c.row_id.in_(ids))
        claimed = (
            sa.update(self._tables.changes)
            .where(c.subject_id.in_(same), c.collection.in_(collections), _is_free(c.claimed_until, now))
            .values(claimed_by=instance_id, claimed_until=now + duration)
            .returning(*self._columns)
        )
        rows = await self._database.write(lambda conn: conn.execute(claimed).all(), name="index_outbox.claim")
        return sorted((_change(row) for row in rows), key=lambda change: change.row_id)

    async def release(self, changes: Sequence[Change], instance_id: str) -> None:
        """Gives up the claims of this replica, so that any replica applies the changes."""
        c = self._tables.changes.c
        free = sa.update(self._tables.changes).values(claimed_by=None, claimed_until=None)

        def release(conn: sa.Connection) -> None:
            for some in _chunks([change.row_id for change in changes]):
                conn.execute(free.where(c.row_id.in_(some), c.claimed_by == instance_id))

        if changes:
            await self._database.write(release, name="index_outbox.release")

    async def words_version(self, collection: str) -> str | None:
        """Returns the version of the words in a collection; None if it is not known."""
        return await self._get(_WORDS + collection, "index_outbox.words_version")

    async def put_words_version(self, collection: str, version: str) -> None:
        """Stores the version of the words in a collection."""
        await self._database.write(
            lambda conn: self._put(conn, _WORDS + collection, version), name="index_outbox.put_words_version"
        )

    async def get_mark(self) -> str | None:
        """Returns the name of the last state that the index has flushed; None if it has none."""
        return await self._get(_MARK, "index_outbox.get_mark")

    async def settle(self, changes: Sequence[Change], instance_id: str | None, mark: str | None = None) -> None:
        """Deletes changes that the index has on stable storage, and stores the name of that state if it has one.

        With an `instance_id`, other replicas may have applied changes of the same records at the same time, so that an
        older state of a record may overwrite a newer one. Claims of other replicas on changes of the same record (for
        a group: on any earlier change of the collection) are therefore taken away, so that these changes are applied
        again; and a change that another replica has deleted is added again.
        """

        def settle(conn: sa.Connection) -> None:
            if mark is not None:
                self._put(conn, _MARK, mark)
            for some in _chunks(changes):
                done = some if instance_id is None else self._contest(conn, some, instance_id)
                ids = [change.row_id for change in done]
                conn.execute(sa.delete(self._tables.changes).where(self._tables.changes.c.row_id.in_(ids)))

        if changes:
            await self._database.write(settle, name="index_outbox.settle")

    async def add(self, collection: str, subjects: Sequence[str], claim: Claim | None) -> tuple[Change, ...]:
        """Adds changes of records, claimed by the caller if `claim` is given."""
        now = self._clock.now()
        return await self._database.write(
            lambda conn: add_changes(conn, self._tables, collection, subjects, now, claim=claim),
            name="index_outbox.add",
        )

    async def count(self, collection: str | None = None) -> int:
        """Returns the number of changes."""
        counted = sa.select(sa.func.count()).select_from(self._tables.changes)
        if collection is not None:
            counted = counted.where(self._tables.changes.c.collection == collection)
        return await self._database.read(lambda conn: conn.execute(counted).scalar_one(), name="index_outbox.count")

    async def hold(self, collection: str, instance_id: str, duration: timedelta) -> bool:
        """Takes or renews the right to check and rebuild a collection. Returns false if another replica has it."""
        table, now = self._tables.holders, self._clock.now()
        lease = {"holder": instance_id, "expires_at": now + duration}
        is_free = sa.or_(table.c.holder == instance_id, table.c.expires_at <= now)

        def hold(conn: sa.Connection) -> bool:
            of_collection = table.c.collection == collection
            if conn.execute(sa.update(table).where(of_collection, is_free).values(**lease)).rowcount:
                return True
            if conn.execute(sa.select(table.c.holder).where(of_collection)).first() is not None:
                return False
            conn.execute(sa.insert(table).values(collection=collection, **lease))
            return True

        return await self._database.write(hold, name="index_outbox.hold")

    async def _get(self, name: str, transaction: str) -> str | None:
        c = self._tables.holders.c
        stored = sa.select(c.holder).where(c.collection == name)
        return await self._database.read(lambda conn: conn.execute(stored).scalar(), name=transaction)

    def _put(self, conn: sa.Connection, name: str, value: str) -> None:
        table = self._tables.holders
        values = {"holder": value, "expires_at": self._clock.now()}
        if not conn.execute(sa.update(table).where(table.c.collection == name).values(**values)).rowcount:
            conn.execute(sa.insert(table).values(collection=name, **values))

    def _contest(self, conn: sa.Connection, changes: Sequence[Change], instance_id: str) -> list[Change]:
        """Returns the changes that this replica still has claimed, and makes sure that all others are applied again.

        Another replica may have claimed a change of the same record and may write an older state at any time. It loses
        that claim, so that its change outlives its `settle`; no one applies the change before the claim would expire.
        """
        c = self._tables.changes.c
        ids = [change.row_id for change in changes]
        stored = dict(conn.execute(sa.select(c.row_id, c.claimed_by).where(c.row_id.in_(ids))).all())
        own = [change for change in changes if stored.get(change.row_id) == instance_id]
        again: dict[tuple[str, ChangeKind], list[str]] = {}
        for change in changes:
            if change.row_id not in stored:
                again.setdefault((change.collection, change.kind), []).append(change.subject_id)
        for (collection, kind), subjects in again.items():
            rows = change_rows(collection, subjects, self._clock.now(), kind)
            conn.execute(sa.insert(self._tables.changes), rows)
        lose = sa.update(self._tables.changes).where(c.claimed_by != instance_id).values(claimed_by=None)
        subjects_of: dict[str, list[str]] = {}
        for change in own:
            if change.kind is ChangeKind.RECORD:
                subjects_of.setdefault(change.collection, []).append(change.subject_id)
            else:
                conn.execute(lose.where(c.collection == change.collection, c.row_id < change.row_id))
        for collection, subjects in subjects_of.items():
            conn.execute(lose.where(c.subject_id.in_(subjects), c.collection == collection))
        return own


def _is_free(claimed_until: sa.Column[Any], now: Any) -> sa.ColumnElement[bool]:
    """Returns the condition that no replica has claimed a change."""
    return sa.or_(claimed_until.is_(None), claimed_until <= now)


def _change(row: sa.Row[*tuple[Any, ...]]) -> Change:
    row_id, collection, kind, subject_id, created_at = row
    return Change(row_id, collection, ChangeKind(kind), subject_id, created_at)


def _chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + _IDS_PER_STATEMENT] for start in range(0, len(items), _IDS_PER_STATEMENT)]
