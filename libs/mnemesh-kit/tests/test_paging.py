"""Keyset pages on both engines, with equal keys and NULL keys."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from mnemesh.archival.v1.passages_service_pb2 import SearchPassagesRequest, SearchPassagesResponse
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_pb2 import Block
from mnemesh.recall.v1.messages_service_pb2 import GetContextRequest, GetContextResponse, SearchMessagesRequest
from mnemesh.types.v1 import paging_pb2
from mnemesh.types.v1.message_pb2 import Message
from mnemesh_kit.errors import Aborted, InvalidArgument, NotFound, PageTokenInvalid
from mnemesh_kit.paging import (
    MAX_PAGE_BYTES,
    Cursor,
    Page,
    PageQuery,
    bounded,
    bounded_hits,
    fitting,
    next_page_token,
    offset_from_token,
    page_query,
    version_from_token,
    whole_answer,
)
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.pages import paginate

metadata = sa.MetaData()
things = sa.Table(
    "things",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("rank", sa.Integer),
    sa.Column("kind", sa.Text),
)
ROWS = [("a", 1), ("b", None), ("c", 2), ("d", 1), ("e", None), ("f", 3), ("g", 2)]
ASCENDING, DESCENDING = "adcgfbe", "fgcdaeb"


@pytest.fixture
async def filled(database: Database) -> Database:
    """A table with equal and NULL sort keys."""
    await database.write(metadata.create_all)
    rows = [{"id": id_, "rank": rank, "kind": "odd" if id_ in "ac" else "even"} for id_, rank in ROWS]
    await database.write(lambda conn: conn.execute(things.insert(), rows))
    return database


async def fetch(database: Database, query: PageQuery, *conditions: Any) -> Page[str]:
    stmt = sa.select(things.c.id).where(*conditions)
    page = await database.read(
        lambda conn: paginate(conn, stmt, query, key=things.c.rank, id=things.c.id, scope=sa.true())
    )
    return page.map(lambda row: row.id)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(("ascending", "order"), [(True, ASCENDING), (False, DESCENDING)])
async def test_pages_cover_each_row_once_nulls_last(filled: Database, size: int, ascending: bool, order: str) -> None:
    query, seen = PageQuery(limit=size, ascending=ascending), ""
    while True:
        page = await fetch(filled, query)
        seen += "".join(page.items)
        if page.next_cursor is None:
            break
        assert len(page.items) == size
        query = replace(query, cursor=page.next_cursor)
    assert seen == order


@pytest.mark.parametrize(("sizes", "count"), [([], 0), ([9], 1), ([3, 3], 2), ([3, 4], 1), ([3, 3, 0, 1], 3)])
def test_page_of_bytes_has_at_least_one_item(sizes: list[int], count: int) -> None:
    assert fitting(sizes, int, max_bytes=6) == count


async def test_pages_that_are_bounded_by_bytes_cover_each_row_once(filled: Database) -> None:
    sizes = {"c": 60, "g": 150, "e": 60}
    texts = [{"row_id": id_, "kind": "x" * sizes.get(id_, 40)} for id_, _ in ROWS]
    change = things.update().where(things.c.id == sa.bindparam("row_id")).values(kind=sa.bindparam("kind"))
    await filled.write(lambda conn: conn.execute(change, texts))
    stmt = sa.select(things.c.kind, things.c.id)
    query, seen = PageQuery(limit=100, ascending=True, max_bytes=150), []
    while True:
        page = await filled.read(
            lambda conn, query=query: paginate(  # type: ignore[misc]
                conn, stmt, query, key=things.c.rank, id=things.c.id, scope=sa.true()
            )
        )
        seen.append("".join(item.id for item in page.items))
        if page.next_cursor is None:
            break
        query = replace(query, cursor=page.next_cursor)
    assert seen == ["ad", "c", "g", "fb", "e"]


def test_a_page_ends_before_the_items_of_the_response_exceed_its_bound() -> None:
    query = page_query(rpc.ListBlocksRequest())
    texts = "x" * (MAX_PAGE_BYTES // 2), "é" * (MAX_PAGE_BYTES // 4 - 8), "y"
    positions = tuple(Cursor(number, str(number)) for number in range(3))
    page = bounded(query, Page(texts, positions))
    assert (page.items, page.next_cursor) == (texts[:2], positions[1])
    blocks = page.map(lambda text: Block(value=text + "z" * 300))
    assert bounded(query, blocks).items == blocks.items[:1]
    assert bounded(query, Page(texts[:1], positions[:1], more=True)).next_cursor == positions[0]
    assert bounded(query, Page(texts[2:], positions[2:])).next_cursor is None
    assert bounded(query, Page((MAX_PAGE_BYTES, 0, 1), positions), int).items == (MAX_PAGE_BYTES, 0)
    large = Block(value="x" * 2 * MAX_PAGE_BYTES)
    assert bounded(query, Page((large, large), positions[:2])).items == (large,)


def test_answers_of_a_search_continue_without_a_gap_or_a_repetition() -> None:
    sizes = (2, 1, 3, 1, 1)
    hits = [Block(id=f"hit {number}", value="x" * (size * 999_000)) for number, size in enumerate(sizes)]
    request = SearchPassagesRequest(query="tea", limit=5)
    found = []
    while True:
        shown, request.page_token = bounded_hits(request, hits[offset_from_token(request) :])
        found.append([int(hit.id[-1]) for hit in shown])
        if not request.page_token:
            break
    assert found == [[0, 1], [2], [3, 4]]
    assert bounded_hits(request, []) == ([], "")
    assert bounded_hits(request, hits[:2]) == (hits[:2], "")


def test_a_place_without_a_hit_counts_as_one_that_was_answered() -> None:
    large, small = Block(value="x" * 2_900_000), Block(value="y" * 200_000)
    request = SearchPassagesRequest(query="tea")
    shown, request.page_token = bounded_hits(request, [None, large, None, small, None])
    assert (shown, offset_from_token(request)) == ([large], 3)
    assert bounded_hits(request, [None, None]) == ([], "")


def test_the_token_of_a_search_belongs_to_it() -> None:
    request = SearchPassagesRequest(query="tea", limit=5)
    block = Block(value="x" * 2_000_000)
    _, token = bounded_hits(request, [block, block])
    assert offset_from_token(request) == 0
    assert offset_from_token(SearchPassagesRequest(query="tea", limit=5, page_token=token)) == 1
    for other in (
        SearchPassagesRequest(query="coffee", limit=5, page_token=token),
        SearchPassagesRequest(query="tea", limit=6, page_token=token),
        SearchMessagesRequest(query="tea", limit=5, page_token=token),
        SearchPassagesRequest(query="tea", limit=5, page_token=token[:-3]),
    ):
        with pytest.raises(PageTokenInvalid) as refused:
            offset_from_token(other)
        assert refused.value.field == "page_token"


async def test_a_whole_answer_has_the_hits_of_all_pages_and_costs_one_call_if_there_is_one() -> None:
    calls: list[tuple[SearchPassagesRequest, float]] = []
    first = SearchPassagesResponse(hits=[{"score": 2}], next_page_token="more", degraded=True)
    last = SearchPassagesResponse(hits=[{"score": 1}], time_ranges=[{}])

    async def search(request: SearchPassagesRequest, timeout: float) -> SearchPassagesResponse:
        calls.append((request, timeout))
        return last if request.page_token or request.query == "one page" else first

    assert await whole_answer(search, SearchPassagesRequest(query="one page"), seconds=1) == last
    assert len(calls) == 1
    request = SearchPassagesRequest(query="two pages")
    found = await whole_answer(search, request, seconds=2)
    assert found == SearchPassagesResponse(hits=[{"score": 2}, {"score": 1}], degraded=True)
    assert request == SearchPassagesRequest(query="two pages")
    assert calls[1:] == [(request, 2), (SearchPassagesRequest(query="two pages", page_token="more"), 2)]


async def test_what_changes_between_its_pages_is_read_again() -> None:
    calls: list[str] = []
    changes = 2

    async def read(request: GetContextRequest, timeout: float) -> GetContextResponse:
        calls.append(request.page_token)
        if request.page_token and len(calls) <= 2 * changes:
            raise Aborted("It has changed.")
        version = 1 + len(calls) // 2
        id_ = f"{version}{request.page_token}"
        context = {"version": version, "messages": [{"id": id_}]}
        return GetContextResponse(context=context, next_page_token="" if request.page_token else "b")

    found = await whole_answer(read, GetContextRequest(), seconds=1, field="context.messages")
    assert [message.id for message in found.context.messages] == ["3", "4b"]
    assert calls == ["", "b"] * 3
    calls.clear()
    changes = 100
    with pytest.raises(Aborted):
        await whole_answer(read, GetContextRequest(), seconds=1, field="context.messages")
    assert len(calls) == 10


def test_a_token_of_a_version_has_it() -> None:
    request = GetContextRequest(conversation_id="c")
    assert version_from_token(request) == ""
    rows = [Message(id="x" * 2_000_000), Message(id="y" * 2_000_000)]
    shown, token = bounded_hits(request, rows, "7")
    assert shown == rows[:1]
    request.page_token = token
    assert (offset_from_token(request), version_from_token(request)) == (1, "7")


@pytest.mark.parametrize(("ascending", "order"), [(True, ASCENDING), (False, DESCENDING)])
async def test_after_id_and_before_id_split_a_list_at_any_row(filled: Database, ascending: bool, order: str) -> None:
    for index, id_ in enumerate(order):
        after = await fetch(filled, PageQuery(limit=9, ascending=ascending, after_id=id_))
        before = await fetch(filled, PageQuery(limit=9, ascending=ascending, before_id=id_))
        assert ("".join(before.items), "".join(after.items)) == (order[:index], order[index + 1 :])
    outside = await fetch(filled, PageQuery(limit=9, ascending=True, after_id="d"), things.c.kind == "odd")
    assert outside.items == ("c",)
    with pytest.raises(NotFound):
        await fetch(filled, PageQuery(limit=9, ascending=True, after_id="z"))


def test_token_is_bound_to_its_query() -> None:
    request = rpc.ListBlocksRequest(page_size=2, order=paging_pb2.SORT_ORDER_DESCENDING)
    query = page_query(request)
    assert (query.limit, query.ascending, query.cursor) == (2, False, None)
    token = next_page_token(query, Page((1,), (Cursor("2026-01-01", "x"),), more=True))
    request.page_token = token
    assert page_query(request).cursor == Cursor("2026-01-01", "x")
    request.page_size = 5
    assert page_query(request).limit == 5
    request.filter.label = "other"
    with pytest.raises(PageTokenInvalid):
        page_query(request)
    assert next_page_token(query, Page((1,), (Cursor(1, "x"),))) == ""


@pytest.mark.parametrize("value", ["1", True, 1.5, 2**63, -(2**70), "\0"])
async def test_forged_token_with_a_value_of_another_type_is_refused(filled: Database, value: Any) -> None:
    with pytest.raises(PageTokenInvalid):
        await fetch(filled, PageQuery(limit=1, ascending=True, cursor=Cursor(value, "a")))


@pytest.mark.parametrize("value", ["yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", 7, None])
async def test_forged_token_with_an_invalid_time_is_refused(filled: Database, value: Any) -> None:
    key = sa.column("rank", UtcDateTime())
    key.nullable = False  # type: ignore[attr-defined]
    query = PageQuery(limit=1, ascending=True, cursor=Cursor(value, "a"))
    stmt = sa.select(things.c.id)
    with pytest.raises(PageTokenInvalid):
        await filled.read(lambda conn: paginate(conn, stmt, query, key=key, id=things.c.id, scope=sa.true()))


@pytest.mark.parametrize("token", ["x", "!!", "bnVsbA", "WzEsMiwzXQ", "é"])
def test_malformed_token_is_refused(token: str) -> None:
    with pytest.raises(PageTokenInvalid):
        page_query(rpc.ListBlocksRequest(page_token=token))


def test_invalid_page_sizes_and_orders_are_refused() -> None:
    assert page_query(rpc.ListBlocksRequest()).limit == 50
    assert not page_query(rpc.ListBlocksRequest(), default_ascending=False).ascending
    for request in (rpc.ListBlocksRequest(page_size=-1), rpc.ListBlocksRequest(page_size=1001)):
        with pytest.raises(InvalidArgument):
            page_query(request)
    odd = rpc.ListBlocksRequest(order=99)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        page_query(odd)
