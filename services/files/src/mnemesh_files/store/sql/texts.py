"""The texts of files in SQL: compressed segments of consecutive lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_files.store.base.agent_files import PassageLines
from mnemesh_files.store.sql.tables import file_passages, files, segments
from mnemesh_files.store.sql.text_rows import line_ranges

_s = segments.c
_CHUNK = 300


class SqlTextStore:
    """See TextStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def lines(
        self, organization_id: str, file_id: str, text_id: str, first: int, last: int, max_chars: int
    ) -> list[str] | None:
        """See TextStore.lines."""

        def read(conn: sa.Connection) -> list[str] | None:
            found: list[str] = []
            size, is_known = 0, False
            for part in line_ranges(conn, organization_id, file_id, text_id, (first, last)):
                is_known = True
                found += part
                size += sum(map(len, part)) + len(part)
                if size > max_chars:
                    break
            return found if is_known else None

        return await self._database.read(read)

    async def compressed(
        self, organization_id: str, texts: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], list[bytes]]:
        """See TextStore.compressed."""
        found: dict[tuple[str, str], list[bytes]] = defaultdict(list)

        def read(conn: sa.Connection) -> None:
            for start in range(0, len(texts), _CHUNK):
                some = texts[start : start + _CHUNK]
                # SQLite uses no index for pairs; the ids of files alone select the rows.
                query = (
                    sa.select(_s.file_id, _s.text_id, _s.data)
                    .where(
                        _s.organization_id == organization_id,
                        _s.file_id.in_([file_id for file_id, _ in some]),
                        sa.tuple_(_s.file_id, _s.text_id).in_(some),
                    )
                    .order_by(_s.file_id, _s.text_id, _s.first_line)
                )
                for row in conn.execute(query):
                    found[row.file_id, row.text_id].append(row.data)

        await self._database.read(read)
        return found

    async def passage_lines(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassageLines]:
        """See TextStore.passage_lines."""
        p, f = file_passages.c, files.c
        query = (
            sa.select(p.passage_id, p.file_id, p.start_line, p.end_line)
            .join(
                files,
                sa.and_(f.organization_id == p.organization_id, f.id == p.file_id, f.text_id == p.text_id),
            )
            .where(p.organization_id == organization_id, p.passage_id.in_(passage_ids), f.deleted_at.is_(None))
        )

        def read(conn: sa.Connection) -> dict[str, PassageLines]:
            found = conn.execute(query).all()
            return {row.passage_id: PassageLines(row.file_id, row.start_line, row.end_line) for row in found}

        return await self._database.read(read)
