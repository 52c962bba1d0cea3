"""Lists of passages in SQL: pages by creation time, bounded by rows and bytes, and searches for words in the text."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.paging import Cursor, Page, PageQuery, fitting
from mnemesh_kit.sql.pages import paginate
from mnemesh_retrieval.words.analysis import normal_form

from mnemesh_archival.model.passages import Passage
from mnemesh_archival.store.base.passages import PassageScope
from mnemesh_archival.store.sql import passage_rows as rows
from mnemesh_archival.store.sql.tables import archives, passages

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

    None for words is no condition; no word matches nothing. An empty part is no condition.
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
