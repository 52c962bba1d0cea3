"""Rows of a table as dataclasses, on both engines."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.rows import Rows

metadata = sa.MetaData()
books = sa.Table(
    "books",
    metadata,
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("title", sa.Text, primary_key=True),
    sa.Column("book_kind", sa.Text, nullable=False),
    sa.Column("words", sa.Text, nullable=False),
    sa.Column("printed", sa.Text),
    sa.Column("metadata", sa.Text),
    sa.Column("city", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
)


class Kind(StrEnum):
    NOVEL = "novel"
    ATLAS = "atlas"


@dataclass(frozen=True)
class Edition:
    number: int
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Origin:
    city: str | None = None
    created_at: datetime = datetime(2024, 1, 2, 3, 4, 5, 6, UTC)


@dataclass(frozen=True)
class Book:
    title: str
    kind: Kind = Kind.NOVEL
    words: tuple[str, ...] = ()
    printed: Edition | None = None
    metadata: str | None = None
    origin: Origin = Origin()
    lent: bool = False


ROWS = Rows(books, Book, inline=("origin",), kind="book_kind")


@pytest_asyncio.fixture
async def filled(database: Database) -> AsyncIterator[Database]:
    await database.write(metadata.create_all)
    yield database


@pytest.mark.parametrize(
    "book",
    [
        Book("Emma"),
        Book(
            "Atlas", Kind.ATLAS, ("é", '"'), Edition(2, ("Ulm",)), "{}", Origin("Ulm", datetime(1990, 5, 6, tzinfo=UTC))
        ),
    ],
)
async def test_row_that_was_written_is_read(filled: Database, book: Book) -> None:
    await filled.write(lambda conn: conn.execute(books.insert(), ROWS.to_row(book, owner="me")))
    row = await filled.read(lambda conn: conn.execute(sa.select(books)).one())
    assert row.owner == "me"
    assert row.book_kind == book.kind.value
    assert ROWS.from_row(row) == book
    assert ROWS.from_row(row, lent=True) == replace(book, lent=True)


def test_type_without_a_form_in_a_column_is_refused_when_it_is_declared() -> None:
    @dataclass(frozen=True)
    class Shelf:
        title: str
        words: object

    with pytest.raises(AssertionError, match="no form"):
        Rows(books, Shelf)
