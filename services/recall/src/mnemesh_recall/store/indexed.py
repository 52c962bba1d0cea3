"""The records from which the vector index is derived."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_types.messages import Message

from mnemesh_recall.model.episodes import MemoryText
from mnemesh_recall.store import episode_rows, tables
from mnemesh_recall.store.message_rows import COLUMNS, message_from_row
from mnemesh_recall.store.tables import episodes, facts, messages

_m = messages.c
_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("ids", expanding=True)
_IS_SEARCHABLE: Final = _m.search_text.is_not(None)
_SEARCHABLE: Final = {
    dialect: sa.select(*COLUMNS, _m.organization_id).where(has_id, _IS_SEARCHABLE)
    for dialect, has_id in tables.among(_m.id).items()
}
_EXISTING: Final = sa.select(_m.id).where(_m.id.in_(_IDS), _IS_SEARCHABLE)
_COUNT: Final = sa.select(sa.func.count()).select_from(messages).where(_IS_SEARCHABLE)
_TABLES: Final = (episodes, facts)


class IndexedMessages:
    """The messages with searchable text."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, ids: Sequence[str]) -> dict[str, tuple[str, Message]]:
        """Returns those of the messages that exist, by id, each with its organization."""
        statement = _SEARCHABLE[self._database.dialect]
        rows = await self._database.read(lambda conn: conn.execute(statement, tables.listed(conn, ids)).all())
        return {row[0]: (row[-1], message_from_row(row)) for row in rows}

    async def list_ids(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """Returns pairs of a position and an id, in the order of storing; None begins with the first message.

        The position is the number of the row.
        """
        page = sa.select(_m.row_id, _m.id).where(_m.row_id > int(after or 0), _IS_SEARCHABLE)
        rows = await self._database.read(lambda conn: conn.execute(page.order_by(_m.row_id).limit(limit)).all())
        return [(str(row_id), id_) for row_id, id_ in rows]

    async def find_existing(self, ids: Sequence[str]) -> frozenset[str]:
        """Returns those of the ids that exist."""
        return await self._database.read(lambda conn: frozenset(conn.execute(_EXISTING, {"ids": list(ids)}).scalars()))

    async def count(self) -> int:
        """Returns the number of messages."""
        return await self._database.read(lambda conn: conn.execute(_COUNT).scalar_one())


class IndexedMemories:
    """The episodes and facts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, ids: Sequence[str]) -> list[MemoryText]:
        """Returns the texts of those that exist."""
        return await self._database.read(lambda conn: episode_rows.read_texts(conn, ids))

    async def list_ids(self, after: str | None, limit: int) -> list[str]:
        """Returns ids in order, after the id `after`; None begins with the first. Episodes come before facts."""

        def read(conn: sa.Connection) -> list[str]:
            found: list[str] = []
            for table in _TABLES:
                page = sa.select(table.c.id).where(table.c.id > (after or "")).order_by(table.c.id)
                found += conn.execute(page.limit(limit - len(found))).scalars()
            return found

        return await self._database.read(read)

    async def find_existing(self, ids: Sequence[str]) -> frozenset[str]:
        """Returns those of the ids that exist."""

        def read(conn: sa.Connection) -> frozenset[str]:
            found = (conn.execute(sa.select(table.c.id).where(table.c.id.in_(ids))).scalars() for table in _TABLES)
            return frozenset(id_ for ids_of_table in found for id_ in ids_of_table)

        return await self._database.read(read)

    async def count(self) -> int:
        """Returns the number of episodes and facts."""

        def count(conn: sa.Connection) -> int:
            return sum(conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in _TABLES)

        return await self._database.read(count)
