"""The upgrade of passages of earlier versions in SQL. See revision 0007 for what their rows have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_archival.model.passages import Passage
from mnemesh_archival.store.base.upgrade import UncopiedPassage
from mnemesh_archival.store.sql import archive_rows, continuity_rows
from mnemesh_archival.store.sql import passage_rows as rows
from mnemesh_archival.store.sql.tables import archives, passages

NO_METADATA = "null"
"""The metadata of a row whose unfinished update removed the metadata. Metadata of a passage are a JSON object."""
_UNCOPIED = passages.c.source.is_(None)
_PAGE = (
    sa.select(passages.c.organization_id, passages.c.id, passages.c.point_id, archives.c.embedder)
    .join(
        archives,
        sa.and_(archives.c.organization_id == passages.c.organization_id, archives.c.id == passages.c.archive_id),
    )
    .where(_UNCOPIED, passages.c.point_id > sa.bindparam("after"))
    .order_by(passages.c.point_id)
    .limit(sa.bindparam("limit"))
)
_ROWS = sa.select(passages).where(_UNCOPIED, passages.c.point_id.in_(sa.bindparam("points", expanding=True)))


class SqlUpgradeStore:
    """See UpgradeStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def count(self) -> int:
        """See UpgradeStore.count."""
        query = sa.select(sa.func.count()).select_from(passages).where(_UNCOPIED)
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def uncopied(self, after: UUID | None, limit: int) -> Sequence[UncopiedPassage]:
        """See UpgradeStore.uncopied."""
        values = {"after": str(after) if after is not None else "", "limit": limit}
        found = await self._database.read(lambda conn: conn.execute(_PAGE, values).all())
        return [UncopiedPassage(row.organization_id, row.id, UUID(row.point_id), row.embedder) for row in found]

    async def fill(self, copies: Sequence[tuple[UncopiedPassage, Passage]]) -> None:
        """See UpgradeStore.fill."""
        content = {str(each.point_id): passage for each, passage in copies}

        def write(conn: sa.Connection) -> None:
            for row in self._rows(conn, list(content)):
                values = rows.content_values(_merged(row, content[row.point_id]))
                # The strand of a passage from before positions does not name its file. Without a fingerprint, `derive`
                # decides whether it belongs together with its neighbours.
                kept = {name: values[name] for name in values if name not in {"strand", "created_at", "fingerprint"}}
                conn.execute(passages.update().where(_is(row)).values(**kept, deleted_at=None))
                if row.deleted_at is not None:
                    self._count(conn, row, 1)

        if content:
            await self._database.write(write, name="upgrade.fill")

    async def lose(self, missing: Sequence[UncopiedPassage]) -> int:
        """See UpgradeStore.lose."""
        points = [str(each.point_id) for each in missing]

        def write(conn: sa.Connection) -> int:
            lost = [row for row in self._rows(conn, points) if row.deleted_at is None]
            for row in lost:
                conn.execute(passages.update().where(_is(row)).values(deleted_at=self._clock.now()))
                self._count(conn, row, -1)
            return len(lost)

        return await self._database.write(write, name="upgrade.lose") if points else 0

    async def derive(self, limit: int) -> int:
        """See UpgradeStore.derive."""
        return await self._database.write(lambda conn: continuity_rows.derive(conn, limit), name="upgrade.derive")

    def _rows(self, conn: sa.Connection, points: Sequence[str]) -> list[sa.Row[Any]]:
        return [row for some in rows.chunks(points) for row in conn.execute(_ROWS, {"points": some}).all()]

    def _count(self, conn: sa.Connection, row: sa.Row[Any], by: int) -> None:
        tags = Counter(dict.fromkeys(rows.decoded_tags(row.tags), by))
        archive_rows.count_passages(conn, row.organization_id, row.archive_id, by, tags, self._clock.now())


def _is(row: sa.Row[Any]) -> sa.ColumnElement[bool]:
    return sa.and_(passages.c.organization_id == row.organization_id, passages.c.id == row.id)


def _merged(row: sa.Row[Any], stored: Passage) -> Passage:
    """Returns the content of the index with what the row knows better: tags, and an update that was not finished."""
    changes: dict[str, Any] = {"tags": rows.decoded_tags(row.tags), "created_at": row.created_at}
    if row.text is not None:
        changes["text"] = row.text
    if row.metadata is not None:
        changes["metadata"] = None if row.metadata == NO_METADATA else row.metadata
    if row.updated_at is not None:
        changes["updated_at"] = row.updated_at
    return replace(stored, **changes)
