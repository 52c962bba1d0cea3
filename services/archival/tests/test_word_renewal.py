"""A data directory with the words of an earlier analysis is searched at once, and its index renewed once."""

import asyncio
from typing import Any

import pytest
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh_archival.vectors import PassageSource
from mnemesh_retrieval.indexing.walks import Walks
from mnemesh_retrieval.words import sparse
from mnemesh_testkit.timeouts import scaled

from .conftest import ArchivalServer


async def test_words_of_an_earlier_analysis_are_renewed(
    archival: ArchivalServer, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await archival.stop()
    with monkeypatch.context() as before:
        before.setattr(sparse, "number_of", lambda word: sum(map(ord, word)))
        before.setattr(PassageSource, "words_version", "1")
        await archival.start()
        await archival.insert(agent, "Nora waters the alpacas", "Die Häuser sind alt und das ist schade")
        await archival.stop()
    may_renew = asyncio.Event()
    check = Walks.check_all

    async def waiting(self: Walks, **options: Any) -> None:
        await may_renew.wait()
        await check(self, **options)

    monkeypatch.setattr(Walks, "check_all", waiting)
    await archival.start()

    async def search(query: str) -> rpc.SearchPassagesResponse:
        filter_ = rpc.PassageFilter(agent_id=agent)
        request = rpc.SearchPassagesRequest(query=query, filter=filter_, mode=rpc.PASSAGE_SEARCH_MODE_TEXT, limit=1)
        found: rpc.SearchPassagesResponse = await archival.passages.SearchPassages(request)
        return found

    for query, text in (("alpaca", "Nora waters the alpacas"), ("Haus", "Die Häuser sind alt und das ist schade")):
        found = await search(query)
        assert [hit.passage.text for hit in found.hits] == [text]
        assert found.degraded
    may_renew.set()
    async with asyncio.timeout(scaled(30)):
        while (await search("alpaca")).degraded:
            await asyncio.sleep(0.01)
    assert [hit.passage.text for hit in (await search("alpaca")).hits] == ["Nora waters the alpacas"]
    await archival.stop()
    may_renew.clear()
    await archival.start()
    assert not (await search("Haus")).degraded
