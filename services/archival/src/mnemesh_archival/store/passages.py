"""The store of passages in SQL: their life, lists, searches for words in the text, and the passages around others."""

import heapq
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Cursor, Page, PageQuery, fitting
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock
from mnemesh_retrieval.indexing.outbox import Change, Claim
from mnemesh_retrieval.words.analysis import normal_form

from mnemesh_archival.errors import PassageNotFound
from mnemesh_archival.model.inserts import InsertEntry
from mnemesh_archival.model.passages import Passage, PassageChange, PassagePosition, changed
from mnemesh_archival.store import archive_rows, index_changes, passage_inserts
from mnemesh_archival.store import passage_rows as rows
from mnemesh_archival.store.tables import (
    Equals,
    InsertBatch,
    Neighbourhood,
    PassagePoint,
    PassageScope,
    StoredInsert,
    Surroundings,
    archives,
    passages,
    request_ledger,
)

TOMBSTONE_LIFE: Final = timedelta(days=30)
"""How long the id of a deleted passage is refused: longer than callers retry."""
WORD_BATCH: Final = 100
"""The number of passages that are read at once to look for words in them."""
_KEYS = (passages.c.id, passages.c.point_id, passages.c.created_at, passages.c.size)
_WORD: Final = re.compile(r"[^\W_]+")

Rows = list[sa.Row[Any]]


def list_page(
    conn: sa.Connection, scope: PassageScope, page: PageQuery, words: str, contains: str, bytes_each: int
) -> Page[Passage]:
    """Returns a page; see PassageStore.list_page."""
    if words.strip() or contains:
        found = _matching(conn, scope, page, _words(words) if words.strip() else None, contains.lower())
    else:
        found = _keys(conn, scope, page, [])
    shown = found.first(fitting(found.items, lambda row: row.size + bytes_each, page.max_bytes))
    stored = {
        row.id: rows.passage_from_row(row)
        for row in rows.live_rows(conn, scope.organization_id, [row.id for row in shown.items])
    }
    return shown.map(lambda row: stored[row.id])


def newest_sizes(conn: sa.Connection, scope: PassageScope, limit: int) -> list[tuple[str, int]]:
    """Returns the points and sizes of the newest passages; see PassageStore.newest_sizes."""
    newest = sa.select(passages.c.point_id, passages.c.size).where(*_conditions(conn, scope))
    newest = newest.order_by(passages.c.created_at.desc()).limit(limit)
    archives = [passages.c.archive_id == id_ for id_ in scope.archive_ids] if scope.archive_ids is not None else [None]
    found: list[tuple[str, int]] = []
    for archive in archives:
        of_archive = newest.where(archive) if archive is not None else newest
        found += [(point, size) for point, size in conn.execute(of_archive)]
    return found[:limit]


def _keys(
    conn: sa.Connection, scope: PassageScope, page: PageQuery, also: Sequence[sa.ColumnElement[bool]]
) -> Page[sa.Row[Any]]:
    """Returns a page of keys: of each archive separately, because an index has the order within an archive only."""
    mine = passages.c.organization_id == scope.organization_id
    conditions = [*_conditions(conn, scope), *also]
    query = sa.select(*_KEYS)
    keys = replace(page, max_bytes=None)

    def page_of(*narrower: sa.ColumnElement[bool]) -> Page[sa.Row[Any]]:
        statement = query.where(*conditions, *narrower)
        return paginate(conn, statement, keys, key=passages.c.created_at, id=passages.c.id, scope=mine)

    if scope.archive_ids is None:
        return page_of()
    pages = [page_of(passages.c.archive_id == archive_id) for archive_id in scope.archive_ids]
    return pages[0] if len(pages) == 1 else _merged(pages, page)


def _conditions(conn: sa.Connection, scope: PassageScope) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions of a scope, without that of the archives that it names."""
    mine = passages.c.organization_id == scope.organization_id
    conditions = [mine, rows.LIVE, *rows.filter_conditions(scope.filter, conn.dialect.name)]
    if scope.archive_ids is None and scope.embedder is not None:
        same = sa.and_(archives.c.organization_id == scope.organization_id, archives.c.embedder == scope.embedder)
        conditions.append(passages.c.archive_id.in_(sa.select(archives.c.id).where(same)))
    return conditions


def _merged(pages: Sequence[Page[sa.Row[Any]]], page: PageQuery) -> Page[sa.Row[Any]]:
    ordered = list(
        heapq.merge(
            *(each.items for each in pages), key=lambda row: (row.created_at, row.id), reverse=not page.ascending
        )
    )
    shown = tuple(ordered[: page.limit])
    more = len(ordered) > len(shown) or any(each.next_cursor is not None for each in pages)
    return _page(shown, more=more and bool(shown))


def _matching(
    conn: sa.Connection, scope: PassageScope, page: PageQuery, words: frozenset[str] | None, part: str
) -> Page[sa.Row[Any]]:
    """Returns a page of the passages with all words and a part: the engine selects candidates, which are compared.

    None for words means no condition; no word matches nothing. An empty part means no condition.
    """
    if words is not None and not words:
        return Page(())
    may_contain = [_may_contain(text, conn.dialect.name) for text in (*(words or ()), *((part,) if part else ()))]
    found: Rows = []
    query = replace(page, limit=WORD_BATCH)
    while True:
        batch = _keys(conn, scope, query, may_contain)
        texts = {
            row.id: row.text for row in rows.live_rows(conn, scope.organization_id, [row.id for row in batch.items])
        }
        found += [
            row
            for row in batch.items
            if part in texts[row.id].lower() and (words is None or words <= _words(texts[row.id]))
        ]
        if len(found) > page.limit or batch.next_cursor is None:
            break
        query = replace(query, cursor=batch.next_cursor)
    shown = tuple(found[: page.limit])
    return _page(shown, more=len(found) > len(shown))


def _may_contain(word: str, dialect: str) -> sa.ColumnElement[bool]:
    """Returns a condition that every text with the word fulfils: it has the letters, or letters that are not ASCII."""
    text = passages.c.text
    beyond = text.op("GLOB")("*[^\x01-\x7f]*") if dialect == "sqlite" else text.op("~")("[^\x01-\x7f]")
    return sa.or_(text.icontains(word, autoescape=True), beyond) if word.isascii() else beyond


def _words(text: str) -> frozenset[str]:
    """Returns the words of a text, in lower case and without accents."""
    folded = text.lower()
    if not folded.isascii():
        folded = "".join(char for char in normal_form("NFKD", folded) if not unicodedata.combining(char))
    return frozenset(_WORD.findall(folded))


def _page(shown: tuple[sa.Row[Any], ...], *, more: bool) -> Page[sa.Row[Any]]:
    return Page(shown, tuple(Cursor(row.created_at.isoformat(), row.id) for row in shown), more)


def read_surroundings(
    conn: sa.Connection, organization_id: str, passage_ids: Sequence[str], before: int, after: int
) -> dict[str, Surroundings]:
    """Returns the passages around each of these; see PassageStore.around."""
    points = {UUID(row.point_id): row.id for row in rows.live_rows(conn, organization_id, passage_ids)}
    positions = rows.neighbours(conn, organization_id, list(points), max(before, after))
    at = {(each.archive_id, each.position): each for each in positions}
    near = {each.point_id: (_follow(at, each, -1, before)[::-1], _follow(at, each, 1, after)) for each in positions}
    wanted = list(dict.fromkeys(other.point_id for point in points for side in near.get(point, ()) for other in side))
    stored = {
        UUID(row.point_id): rows.passage_from_row(row)
        for row in rows.rows_of_points(conn, organization_id, wanted, with_text=True)
    }
    return {
        id_: Surroundings(*(tuple(stored[other.point_id] for other in side) for side in near[point]))
        for point, id_ in points.items()
        if point in near
    }


def _follow(
    at: dict[tuple[str, int], PassagePosition], start: PassagePosition, step: int, count: int
) -> list[PassagePosition]:
    """Returns up to `count` passages that continue one in a direction, the nearest first."""
    found: list[PassagePosition] = []
    last = start
    while len(found) < count:
        following = at.get((start.archive_id, last.position + step))
        if following is None or not following.continues(last):
            break
        found.append(following)
        last = following
    return found


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


class PassageStore:
    """Passages: the record, from which the vector index is derived.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing. A mutation
    is one transaction: the passages, the counters of their archive, the idempotency key, and the changes that the index
    must follow. `claim` reserves these changes for the caller, who applies them.

    Example:
        >>> stored = await store.insert("org-1", batch, key, claim)
        >>> await indexer.apply(stored.changes)
        >>> await store.get("org-1", [stored.new[0].id])
        {'passage-…': Passage(…)}
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(database, request_ledger, clock)

    async def insert(
        self, organization_id: str, batch: InsertBatch, key: RequestKey | None, claim: Claim | None
    ) -> StoredInsert:
        """Stores a batch of passages, and creates the agent's default archive if needed.

        A passage whose id is known, live or deleted, is never stored again.

        Raises:
            ArchiveNotFound, AgentErased: the target cannot be written to.
            PassageExists: the ids of all passages are taken.
        """

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
        """Sets new values of a passage. Returns the changes for the index.

        Raises:
            PassageNotFound: the passage does not exist.
        """

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
        """Replaces a passage by a tombstone. Returns the changes for the index. Deleting it again is not an error.

        Raises:
            PassageNotFound: the passage never existed.
        """

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
        """Deletes live passages of an archive.

        Args:
            organization_id: the organization.
            archive_id: the archive.
            selection: the ids of passages, or the id of a file.
            limit: the largest number of passages of a file that are deleted.
            key: the idempotency key.
            claim: as above.

        Returns:
            Their number, whether the file has more, and the changes for the index.

        Raises:
            ArchiveNotFound: the archive does not exist.
        """

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
        """Returns the existing ones of these passages, by id."""
        found = await self._database.read(lambda conn: rows.live_rows(conn, organization_id, passage_ids))
        return {row.id: rows.passage_from_row(row) for row in found}

    async def points(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassagePoint]:
        """Returns the points of the existing ones of these passages, by id."""

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
        """Returns a page of passages by creation time, ties by id, bounded by rows and by bytes.

        Args:
            scope: the passages to list.
            page: the page. `after_id` and `before_id` may name deleted passages.
            words: words that a passage must all contain; empty for no condition.
            contains: a text that a passage must contain, in any case; empty for no condition.
            bytes_each: what the caller adds to each passage, in bytes.

        Raises:
            NotFound: `after_id` or `before_id` is not a passage of the organization.
        """
        return await self._database.read(
            lambda conn: list_page(conn, scope, page, words, contains, bytes_each), name="passages.list"
        )

    async def resolve(self, scope: PassageScope, point_ids: Sequence[UUID]) -> dict[UUID, Passage]:
        """Returns the passages of these points that exist and are in the scope."""
        return await self._in_scope(scope, point_ids, with_text=True)

    async def match(self, scope: PassageScope, point_ids: Sequence[UUID]) -> set[UUID]:
        """Returns those of the points whose passages exist and are in the scope."""
        return set(await self._in_scope(scope, point_ids, with_text=False))

    async def neighbours(
        self, scope: PassageScope, point_ids: Sequence[UUID], reach: int, matched: Collection[UUID], equals: Equals
    ) -> Neighbourhood:
        """Returns the positions of passages, and of those before and after them in a dialogue or document.

        Args:
            scope: the organization, and the passages among which those with the fingerprint are searched.
            point_ids: the passages beside those with the fingerprint.
            reach: the largest distance in the insertion order of the archive.
            matched: the passages whose texts are returned if they belong to a dialogue or document and ask a question.
            equals: the fingerprint.
        """

        def read(conn: sa.Connection) -> Neighbourhood:
            stored = rows.equal(conn, scope.organization_id, scope.archive_ids, *equals)
            equal = {UUID(row.point_id): row.text for row in stored if scope.admits(rows.passage_from_row(row))}
            points = list(dict.fromkeys((*equal, *point_ids)))
            positions = rows.neighbours(conn, scope.organization_id, points, reach)
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
        """Returns the passages before and after each of these in its dialogue or document, up to these numbers.

        A passage that stands alone has none, and a passage that does not exist is missing from the result.
        """
        return await self._database.read(
            lambda conn: read_surroundings(conn, organization_id, passage_ids, before, after), name="passages.around"
        )

    async def newest_sizes(self, scope: PassageScope, limit: int) -> list[tuple[str, int]]:
        """Returns the points, as text, and the sizes in bytes of the newest passages of the scope, in no order."""
        return await self._database.read(lambda conn: newest_sizes(conn, scope, limit))

    async def texts(self, point_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Returns points, as text, and texts of passages that other methods returned; a deleted one has none."""
        return await self._database.read(lambda conn: rows.texts(conn, point_ids))

    async def purge_requests(self) -> int:
        """Deletes idempotency keys that are older than promised. Returns their number."""
        return await self._database.write(self._requests.purge)

    async def purge_tombstones(self, older_than: datetime) -> int:
        """Deletes tombstones of passages that were deleted before this time. Returns their number."""
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
