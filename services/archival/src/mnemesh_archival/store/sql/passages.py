"""The store of passages in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_retrieval.indexing.records import Change, Claim

from mnemesh_archival.errors import PassageNotFound
from mnemesh_archival.model.inserts import InsertEntry
from mnemesh_archival.model.passages import Passage, PassageChange, changed
from mnemesh_archival.store.base.passages import (
    Equals,
    InsertBatch,
    Neighbourhood,
    PassagePoint,
    PassageScope,
    StoredInsert,
    Surroundings,
)
from mnemesh_archival.store.sql import (
    archive_rows,
    index_changes,
    passage_inserts,
    passage_lists,
    position_rows,
    surroundings,
)
from mnemesh_archival.store.sql import passage_rows as rows
from mnemesh_archival.store.sql.tables import archives, passages, request_ledger

_OF_ARCHIVE = sa.and_(archives.c.organization_id == passages.c.organization_id, archives.c.id == passages.c.archive_id)
_EMBEDDERS = (
    sa.select(passages.c.id, passages.c.point_id, archives.c.embedder)
    .join(archives, _OF_ARCHIVE)
    .where(
        passages.c.organization_id == sa.bindparam("org"),
        passages.c.id.in_(sa.bindparam("ids", expanding=True)),
        rows.LIVE,
    )
)


class SqlPassageStore:
    """See PassageStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(request_ledger, clock)

    async def insert(
        self, organization_id: str, batch: InsertBatch, key: RequestKey | None, claim: Claim | None
    ) -> StoredInsert:
        """See PassageStore.insert."""

        def write(conn: sa.Connection) -> StoredInsert:
            new: tuple[Passage, ...] = ()
            changes: tuple[Change, ...] = ()

            def effect() -> list[str]:
                nonlocal new, changes
                entries, new, changes = passage_inserts.store(conn, organization_id, batch, claim, self._clock.now())
                return entries

            written, _ = self._requests.once(conn, key, effect)
            entries = tuple(msgspec.json.decode(entry, type=InsertEntry) for entry in written)
            return StoredInsert(entries, new, changes)

        return await self._database.write(write, name="passages.insert")

    async def update(
        self,
        organization_id: str,
        passage_id: str,
        change: PassageChange,
        key: RequestKey | None,
        claim: Claim | None,
    ) -> tuple[Change, ...]:
        """See PassageStore.update."""

        def write(conn: sa.Connection) -> tuple[Change, ...]:
            changes: tuple[Change, ...] = ()

            def effect() -> list[str]:
                nonlocal changes
                row = _require_live(conn, organization_id, passage_id)
                before = rows.passage_from_row(row)
                after = changed(before, change)
                values = rows.content_values(after)
                if after.text != before.text:
                    values |= rows.without_given_vector()
                conn.execute(passages.update().where(rows.by_ids(organization_id, [passage_id])).values(**values))
                tags = Counter(after.tags)
                tags.subtract(before.tags)
                archive_rows.count_passages(conn, organization_id, row.archive_id, 0, tags, change.updated_at)
                serving = archive_rows.require(conn, organization_id, row.archive_id).embedder
                collections = index_changes.collections_of(conn, organization_id, row.archive_id, serving)
                changes = index_changes.add(conn, collections, [UUID(row.point_id)], claim, change.updated_at)
                return [passage_id]

            self._requests.once(conn, key, effect)
            return changes

        return await self._database.write(write, name="passages.update")

    async def delete(
        self, organization_id: str, passage_id: str, key: RequestKey | None, claim: Claim | None
    ) -> tuple[Change, ...]:
        """See PassageStore.delete."""

        def write(conn: sa.Connection) -> tuple[Change, ...]:
            changes: tuple[Change, ...] = ()

            def effect() -> list[str]:
                nonlocal changes
                for row in rows.rows(conn, organization_id, [passage_id]):
                    if row.deleted_at is None:
                        changes = bury(conn, organization_id, [row], claim, self._clock.now())
                    return [passage_id]
                raise PassageNotFound(passage_id)

            self._requests.once(conn, key, effect)
            return changes

        return await self._database.write(write, name="passages.delete")

    async def delete_many(
        self,
        organization_id: str,
        archive_id: str,
        selection: Sequence[str] | str,
        limit: int,
        key: RequestKey | None,
        claim: Claim | None,
    ) -> tuple[int, bool, tuple[Change, ...]]:
        """See PassageStore.delete_many."""

        def write(conn: sa.Connection) -> tuple[int, bool, tuple[Change, ...]]:
            changes: tuple[Change, ...] = ()

            def effect() -> list[str]:
                nonlocal changes
                archive_rows.require(conn, organization_id, archive_id)
                selected = rows.selected(conn, organization_id, archive_id, selection, limit + 1)
                chosen = selected[:limit] if isinstance(selection, str) else selected
                if chosen:
                    changes = bury(conn, organization_id, chosen, claim, self._clock.now())
                return [str(len(chosen)), "more" if len(chosen) < len(selected) else ""]

            (count, more), _ = self._requests.once(conn, key, effect)
            return int(count), bool(more), changes

        return await self._database.write(write, name="passages.delete_many")

    async def get(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, Passage]:
        """See PassageStore.get."""
        found = await self._database.read(lambda conn: rows.live_rows(conn, organization_id, passage_ids))
        return {row.id: rows.passage_from_row(row) for row in found}

    async def points(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassagePoint]:
        """See PassageStore.points."""

        def read(conn: sa.Connection) -> dict[str, PassagePoint]:
            found: dict[str, PassagePoint] = {}
            for some in rows.chunks(passage_ids):
                for row in conn.execute(_EMBEDDERS, {"org": organization_id, "ids": some}):
                    found[row.id] = PassagePoint(row.embedder, UUID(row.point_id))
            return found

        return await self._database.read(read)

    async def list_page(
        self, scope: PassageScope, page: PageQuery, *, words: str = "", contains: str = "", bytes_each: int = 0
    ) -> Page[Passage]:
        """See PassageStore.list_page."""
        return await self._database.read(
            lambda conn: passage_lists.list_page(conn, scope, page, words, contains, bytes_each), name="passages.list"
        )

    async def resolve(self, scope: PassageScope, point_ids: Sequence[UUID]) -> dict[UUID, Passage]:
        """See PassageStore.resolve."""
        return await self._in_scope(scope, point_ids, with_text=True)

    async def matching(self, scope: PassageScope, point_ids: Sequence[UUID]) -> set[UUID]:
        """See PassageStore.matching."""
        return set(await self._in_scope(scope, point_ids, with_text=False))

    async def neighbours(
        self, scope: PassageScope, point_ids: Sequence[UUID], reach: int, matched: Collection[UUID], equals: Equals
    ) -> Neighbourhood:
        """See PassageStore.neighbours."""

        def read(conn: sa.Connection) -> Neighbourhood:
            stored = rows.equal(conn, scope.organization_id, scope.archive_ids, *equals)
            equal = {UUID(row.point_id): row.text for row in stored if scope.admits(rows.passage_from_row(row))}
            points = list(dict.fromkeys((*equal, *point_ids)))
            positions = position_rows.neighbours(conn, scope.organization_id, points, reach)
            asking = [
                str(each.point_id)
                for each in positions
                if each.asking and each.continuity.is_linked and each.point_id in matched
            ]
            texts = rows.texts(conn, asking)
            return Neighbourhood(positions, {UUID(point): text for point, text in texts}, equal)

        return await self._database.read(read, name="passages.neighbours")

    async def around(
        self, organization_id: str, passage_ids: Sequence[str], before: int, after: int
    ) -> dict[str, Surroundings]:
        """See PassageStore.around."""
        return await self._database.read(
            lambda conn: surroundings.read(conn, organization_id, passage_ids, before, after), name="passages.around"
        )

    async def newest_sizes(self, scope: PassageScope, limit: int) -> list[tuple[str, int]]:
        """See PassageStore.newest_sizes."""
        return await self._database.read(lambda conn: passage_lists.newest_sizes(conn, scope, limit))

    async def texts(self, point_ids: Sequence[str]) -> list[tuple[str, str]]:
        """See PassageStore.texts."""
        return await self._database.read(lambda conn: rows.texts(conn, point_ids))

    async def purge_requests(self) -> int:
        """See PassageStore.purge_requests."""
        return await self._database.write(self._requests.purge)

    async def purge_tombstones(self, older_than: datetime) -> int:
        """See PassageStore.purge_tombstones."""
        old = passages.delete().where(passages.c.deleted_at < older_than)
        return await self._database.write(lambda conn: conn.execute(old).rowcount)

    async def _in_scope(
        self, scope: PassageScope, point_ids: Sequence[UUID], *, with_text: bool
    ) -> dict[UUID, Passage]:
        organization_id = scope.organization_id
        found = await self._database.read(
            lambda conn: rows.rows_of_points(conn, organization_id, point_ids, with_text=with_text)
        )
        pairs = ((UUID(row.point_id), rows.passage_from_row(row)) for row in found)
        return {point: passage for point, passage in pairs if scope.admits(passage)}


def bury(
    conn: sa.Connection,
    organization_id: str,
    live: Iterable[sa.Row[*tuple[Any, ...]]],
    claim: Claim | None,
    now: datetime,
) -> tuple[Change, ...]:
    """Replaces live passages of one archive by tombstones. Returns the changes for the index."""
    buried = list(live)
    archive_id = buried[0].archive_id
    for some in rows.chunks(buried):
        mine = rows.by_ids(organization_id, [row.id for row in some])
        conn.execute(passages.update().where(mine).values(**rows.tombstone_values(now)))
    fewer: Counter[str] = Counter()
    for row in buried:
        fewer.subtract(rows.decoded_tags(row.tags))
    archive_rows.count_passages(conn, organization_id, archive_id, -len(buried), fewer, now)
    serving = archive_rows.require(conn, organization_id, archive_id).embedder
    collections = index_changes.collections_with_points(conn, organization_id, archive_id, serving)
    return index_changes.add(conn, collections, [UUID(row.point_id) for row in buried], claim, now)


def _require_live(conn: sa.Connection, organization_id: str, passage_id: str) -> sa.Row[Any]:
    for row in rows.live_rows(conn, organization_id, [passage_id]):
        return row
    raise PassageNotFound(passage_id)
