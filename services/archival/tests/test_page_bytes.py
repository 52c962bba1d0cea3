"""Responses with passages stay below the 4 MB that gRPC clients accept by default; further pages follow by token."""

from pathlib import Path

import pytest
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    GetPassageRequest,
    ListPassagesRequest,
    SearchPassagesRequest,
)
from mnemesh_kit.errors import PageTokenInvalid

from .conftest import ArchivalServer

CLIENT_LIMIT = 4 * 1024 * 1024


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite only: the bound does not depend on the database."""
    return f"sqlite:///{tmp_path / 'archival.db'}"


async def test_large_passages_are_returned_in_several_pages(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    ids = [await archival.one(archive, f"oak {number} " + "x" * 900_000) for number in range(4)]
    ids.append(await archival.one(archive, "a small oak"))

    listing, listed, sizes = ListPassagesRequest(page_size=1000), [], []
    for _ in ids:
        page = await archival.passages.ListPassages(listing)
        listed += [passage.id for passage in page.passages]
        sizes.append(page.ByteSize())
        if not page.next_page_token:
            break
        listing.page_token = page.next_page_token
    assert listed == ids[::-1]
    assert len(sizes) == 2
    assert max(sizes) < CLIENT_LIMIT

    search, hits = SearchPassagesRequest(query="oak", mode=PASSAGE_SEARCH_MODE_TEXT), []
    first = await archival.passages.SearchPassages(search)
    assert first.ByteSize() < CLIENT_LIMIT
    search.page_token = first.next_page_token
    second = await archival.passages.SearchPassages(search)
    hits = [hit.passage.id for answer in (first, second) for hit in answer.hits]
    assert (sorted(hits), second.next_page_token) == (sorted(ids), "")
    search.query = "elm"
    with pytest.raises(PageTokenInvalid):
        await archival.passages.SearchPassages(search)


async def texts_of(archival: ArchivalServer, request: ListPassagesRequest) -> list[str]:
    """Returns the texts of all pages of a list, sorted."""
    found = []
    while True:
        page = await archival.passages.ListPassages(request)
        found += [passage.text for passage in page.passages]
        if not page.next_page_token:
            return sorted(found)
        request.page_token = page.next_page_token


async def test_parts_of_a_list_are_compared_without_case(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    texts = ("The 9_30 train", "Éva's café", "Кошки и собаки", "100% rain")
    await archival.insert(archive, *(Passage(text=text) for text in texts))

    async def listed(part: str, words: str = "") -> list[str]:
        return await texts_of(archival, ListPassagesRequest(text_contains=part, text_search=words, page_size=1))

    assert await listed("rai") == sorted([texts[0], texts[3]])
    assert await listed("E 9_3") == [texts[0]]
    assert await listed("CAFÉ") == [texts[1]]
    assert await listed("кошки И") == [texts[2]]
    assert await listed("0%") == [texts[3]]
    assert await listed("_") == [texts[0]]
    assert await listed("tren") == []
    assert await listed("rai", "train") == [texts[0]]
    assert await listed("") == sorted(texts)


async def test_words_of_a_list_are_compared_without_case_and_accents(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    texts = ("Éva's café, at 9_30", "eva has a cafe", "evacuation of the café", "кошки и собаки")
    await archival.insert(archive, *(Passage(text=text) for text in texts))

    async def listed(words: str) -> list[str]:
        return await texts_of(archival, ListPassagesRequest(text_search=words, page_size=1))

    assert await listed("EVA cafe") == sorted(texts[:2])
    assert await listed("CAFÉ") == sorted(texts[:3])
    assert await listed("30") == [texts[0]]
    assert await listed("Кошки") == [texts[3]]
    assert await listed("%") == []
    assert await listed("  ") == sorted(texts)
    got = await archival.passages.ListPassages(ListPassagesRequest(text_search="собаки", include_embedding=True))
    assert len(got.passages[0].embedding) == 256
    seen = GetPassageRequest(passage_id=got.passages[0].id)
    assert not (await archival.passages.GetPassage(seen)).passage.embedding
