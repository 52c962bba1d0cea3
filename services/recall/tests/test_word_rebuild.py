"""A data directory with the words of an earlier analysis is searched at once, and its words rebuilt once."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mnemesh.recall.v1 import episodes_service_pb2 as memories
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id
from mnemesh_recall.store import word_rebuilds
from mnemesh_recall.store.fulltext import indexing
from mnemesh_recall.usecases.messages import WordRebuild
from mnemesh_retrieval.words import analysis
from mnemesh_testkit.timeouts import scaled

AGENT, OTHER = new_id("agent"), new_id("agent")


async def say(recall: Any, agent: str, *texts: str) -> None:
    messages = [pb.Message(id=new_id("message"), role=pb.ROLE_USER) for _ in texts]
    for message, text in zip(messages, texts, strict=True):
        message.content.add().text.text = text
    await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=agent, messages=messages))


async def search(recall: Any, query: str, **scope: str) -> rpc.SearchMessagesResponse:
    request = rpc.SearchMessagesRequest(query=query, mode=rpc.SEARCH_MODE_TEXT, **scope)
    found: rpc.SearchMessagesResponse = await recall.SearchMessages(request)
    return found


async def search_facts(recall: Any, query: str) -> memories.SearchFactsResponse:
    request = memories.SearchFactsRequest(query=query, mode=rpc.SEARCH_MODE_TEXT)
    found: memories.SearchFactsResponse = await recall.episodes.SearchFacts(request)
    return found


async def test_words_of_an_earlier_analysis_are_rebuilt(
    serve: Any, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "PAGE", 2)
    with monkeypatch.context() as before:
        before.setattr(analysis, "stem", lambda word, _language="": f"earlier{word}")
        before.setattr(word_rebuilds, "VERSION", "1")
        async with serve(database_url=database_url) as recall:
            await say(recall, AGENT, "We saw alpacas", "Where?", "On a farm", "Nice", "Die Häuser sind dort sehr alt")
            await say(recall, OTHER, "The alpaca farm is closed")
            new = memories.CreateFactRequest()
            new.fact.text, new.fact.scope.agent_id = "Nora breeds alpacas", AGENT
            await recall.episodes.CreateFact(new)
            assert len((await search(recall, "alpacas")).hits) > 0
    may_rebuild = asyncio.Event()
    run = WordRebuild.run

    async def waiting(self: WordRebuild) -> None:
        await may_rebuild.wait()
        await run(self)

    monkeypatch.setattr(WordRebuild, "run", waiting)
    async with serve(database_url=database_url) as recall:
        assert (await search(recall, "alpaca")).degraded
        assert (await search_facts(recall, "alpaca")).degraded
        for query, text in (("alpaca", "We saw alpacas"), ("Haus", "Die Häuser sind dort sehr alt")):
            found = await search(recall, query, agent_id=AGENT)
            assert found.hits[0].text == text
            assert not found.degraded
        may_rebuild.set()
        async with asyncio.timeout(scaled(30)):
            while (await search(recall, "alpaca")).degraded:
                await asyncio.sleep(0.01)
        assert {hit.message.agent_id for hit in (await search(recall, "alpaca")).hits} == {AGENT, OTHER}
        found_facts = await search_facts(recall, "alpaca")
        assert [hit.fact.text for hit in found_facts.hits] == ["Nora breeds alpacas"]
        assert not found_facts.degraded
    may_rebuild.clear()
    async with serve(database_url=database_url) as recall:
        assert not (await search(recall, "alpaca")).degraded


async def test_message_of_an_agent_that_was_erased_meanwhile_is_no_error(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as recall:
        await say(recall, AGENT, "We saw alpacas")
    monkeypatch.setattr(word_rebuilds, "VERSION", "3")
    async with serve() as recall:
        await recall.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT))
        async with asyncio.timeout(scaled(30)):
            while (await search(recall, "alpaca")).degraded:
                await asyncio.sleep(0.01)
        assert not (await search(recall, "alpaca")).hits


async def test_rebuild_leaves_one_part_of_the_index_to_read(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recall.db"

    def parts() -> int:
        with closing(sqlite3.connect(path)) as database:
            (count,) = database.execute("SELECT count(DISTINCT segid) FROM message_terms_idx").fetchone()
        return int(count)

    async with serve(database_url=f"sqlite:///{path}") as recall:
        for text in ("We saw alpacas", "On a farm", "The alpacas were white"):
            await say(recall, AGENT, text)
        assert parts() > 1
    merged = asyncio.Event()
    run = WordRebuild.run

    async def noted(self: WordRebuild) -> None:
        await run(self)
        merged.set()

    monkeypatch.setattr(WordRebuild, "run", noted)
    monkeypatch.setattr(word_rebuilds, "VERSION", "another")
    async with serve(database_url=f"sqlite:///{path}") as recall:
        async with asyncio.timeout(scaled(30)):
            await merged.wait()
        assert parts() == 1
        assert len((await search(recall, "alpacas", agent_id=AGENT)).hits) == 3
