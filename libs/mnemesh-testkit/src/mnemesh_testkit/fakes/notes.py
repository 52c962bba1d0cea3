"""Notes: the records of a small service in SQL, from which the library's indexer derives a vector index."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.embedders.built_in import HashingEmbedder
from mnemesh_retrieval.errors import EmbedderRejected, EmbedderUnavailable
from mnemesh_retrieval.filters import EVERYTHING, Filter, HasId, Match
from mnemesh_retrieval.index import Collection as IndexCollection
from mnemesh_retrieval.index import NearestIndex, SearchMode, SearchQuery
from mnemesh_retrieval.indexing.outbox import Change, Claim, Record, add_changes, add_group, outbox_tables

NOTES: Final = "notes"
REFUSED: Final = "refused"
"""The embedder refuses a text with this word for ever."""
metadata = sa.MetaData()
index_tables = outbox_tables(metadata)
notes = sa.Table(
    "notes",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("book", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


def note_id(number: int) -> str:
    return f"note-{uuid.uuid5(uuid.NAMESPACE_OID, str(number))}"


class Embedder(HashingEmbedder):
    """An embedder that can be away, and that refuses some texts."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = self.refuses_all = False
        self.embedded: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See Embedder."""
        if self.is_away:
            raise EmbedderUnavailable("away")
        if self.refuses_all or any(REFUSED in text for text in texts):
            raise EmbedderRejected("refused")
        self.embedded += texts
        return await super().embed(texts)


class Notebook:
    """The store of notes. Every write adds its changes to the outbox in the same transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create_tables(self) -> None:
        await self.database.write(metadata.create_all, name="notes.create")

    async def put(self, texts: Mapping[str, str], book: str = "one", claim: Claim | None = None) -> tuple[Change, ...]:
        """Stores notes, in place of those with the same ids."""

        def put(conn: sa.Connection) -> tuple[Change, ...]:
            conn.execute(sa.delete(notes).where(notes.c.id.in_(list(texts))))
            conn.execute(sa.insert(notes), [{"id": id_, "book": book, "text": text} for id_, text in texts.items()])
            return add_changes(conn, index_tables, NOTES, list(texts), _NOW, claim=claim)

        return await self.database.write(put, name="notes.put")

    async def delete(self, ids: Sequence[str]) -> None:

        def delete(conn: sa.Connection) -> None:
            conn.execute(sa.delete(notes).where(notes.c.id.in_(ids)))
            add_changes(conn, index_tables, NOTES, ids, _NOW)

        await self.database.write(delete, name="notes.delete")

    async def drop(self, book: str) -> None:
        """Deletes a book with all its notes, for ever."""

        def drop(conn: sa.Connection) -> None:
            conn.execute(sa.delete(notes).where(notes.c.book == book))
            add_group(conn, index_tables, NOTES, book, _NOW)

        await self.database.write(drop, name="notes.drop")

    async def texts(self) -> dict[str, str]:
        """Returns the texts of all notes by id."""
        rows = await self.database.read(lambda conn: conn.execute(sa.select(notes.c.id, notes.c.text)).all())
        return dict(tuple(row) for row in rows)

    async def backup(self) -> dict[sa.Table, list[dict[str, Any]]]:
        """Returns the contents of the database."""
        tables = (notes, index_tables.changes, index_tables.holders)
        return await self.database.read(
            lambda conn: {table: [dict(row._mapping) for row in conn.execute(sa.select(table))] for table in tables}
        )

    async def restore(self, backup: Mapping[sa.Table, list[dict[str, Any]]]) -> None:
        """Replaces the contents of the database."""

        def restore(conn: sa.Connection) -> None:
            for table, rows in backup.items():
                conn.execute(sa.delete(table))
                if rows:
                    conn.execute(sa.insert(table), rows)

        await self.database.write(restore, name="notes.restore")


class NoteSource:
    """See Source."""

    def __init__(
        self,
        notebook: Notebook,
        embedder: Embedder,
        *,
        keep_without_vector: bool = False,
        words_version: str | None = None,
    ) -> None:
        self.database = notebook.database
        self.embedder = embedder
        self.keep_without_vector = keep_without_vector
        self.words_version = words_version
        self.schema = IndexCollection(NOTES, embedder.dimension, keyword_fields=("book",), tenant_field="book")

    async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
        """See Source."""
        found = sa.select(notes).where(notes.c.id.in_(subjects))
        rows = await self.database.read(lambda conn: conn.execute(found).all())
        return {row.id: Record(row.text, {"book": row.book}, row.text) for row in rows}

    def point_id(self, subject: str) -> UUID:
        """See Source."""
        return UUID(subject.removeprefix("note-"))

    def subject_of(self, point_id: UUID) -> str:
        """See Source."""
        return f"note-{point_id}"

    def group_filter(self, group: str) -> Filter:
        """See Source."""
        return Match("book", group)

    async def list_subjects(self, after: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """See Source."""
        page = sa.select(notes.c.id).where(notes.c.id > (after or "")).order_by(notes.c.id).limit(limit)
        ids = await self.database.read(lambda conn: conn.execute(page).scalars().all())
        return [(id_, id_) for id_ in ids]

    async def find_existing(self, points: Sequence[UUID]) -> Collection[UUID]:
        """See Source."""
        found = sa.select(notes.c.id).where(notes.c.id.in_([self.subject_of(point) for point in points]))
        ids = await self.database.read(lambda conn: conn.execute(found).scalars().all())
        return {self.point_id(id_) for id_ in ids}

    async def count(self) -> int:
        """See Source."""
        counted = sa.select(sa.func.count()).select_from(notes)
        return await self.database.read(lambda conn: conn.execute(counted).scalar_one())


async def difference(notebook: Notebook, index: NearestIndex, source: NoteSource) -> dict[str, str]:
    """Returns what differs between the notes and the index, by id: missing, extra, or stale."""
    texts = {source.point_id(id_): text for id_, text in (await notebook.texts()).items()}
    points = set(await index.scan(NOTES, EVERYTHING, limit=100_000))
    wrong = {str(point): "missing" for point in texts.keys() - points if text_has_vector(texts[point])}
    wrong |= {str(point): "extra" for point in points - texts.keys()}
    for point in (point for point in points & texts.keys() if text_has_vector(texts[point])):
        (vector,) = await HashingEmbedder().embed([texts[point]])
        query = SearchQuery(SearchMode.VECTOR, vector=vector, filter=HasId((point,)), limit=1)
        hits = await index.search(NOTES, query)
        if not hits or hits[0].score < 0.98:
            wrong[str(point)] = "stale"
    return wrong


def text_has_vector(text: str) -> bool:
    """Returns whether the embedder has a vector for a text."""
    return bool(text.strip()) and REFUSED not in text
