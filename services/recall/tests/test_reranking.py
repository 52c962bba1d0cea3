"""Searches of messages are reranked if a reranker is configured, and keep their ranking if it fails."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.config import ConfigError
from mnemesh_kit.ids import new_id
from mnemesh_recall.config import Config
from mnemesh_recall.wiring import assemble
from mnemesh_testkit.fakes.embedders import FakeReranker
from starlette.responses import PlainTextResponse

from .conftest import Serve

AGENT = new_id("agent")
START = datetime(2026, 1, 1, tzinfo=UTC)
SAID = (
    ("Tomas", "Did you sell the boat?"),
    ("Nora", "Yes, to a baker from Bergen."),
    ("Tomas", "The boat was red, and the boat was fast."),
    ("Nora", "A boat again."),
)


@pytest.fixture
async def provider() -> AsyncIterator[FakeReranker]:
    async with FakeReranker(lambda text: float("baker" in text)) as provider:
        yield provider


def settings(provider: FakeReranker, **more: Any) -> dict[str, Any]:
    url = f"{provider.url}/cohere"
    return {"reranker": "acme/m", "reranker_base_url": url, "reranker_timeout_ms": 30_000, **more}


async def fill(stub: Any) -> None:
    messages = []
    for place, (name, text) in enumerate(SAID):
        role = pb.ROLE_USER if name == "Tomas" else pb.ROLE_ASSISTANT
        content = [pb.ContentPart(text=pb.TextPart(text=text))]
        message = pb.Message(id=new_id("message"), agent_id=AGENT, role=role, content=content, name=name)
        message.create_time.FromDatetime(START + timedelta(minutes=place))
        messages.append(message)
    await stub.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=messages))


async def search(stub: Any, query: str = "boat", **fields: Any) -> Any:
    fields.setdefault("mode", rpc.SEARCH_MODE_TEXT)
    return await stub.SearchMessages(rpc.SearchMessagesRequest(query=query, agent_id=AGENT, **fields))


async def test_candidates_are_read_with_speaker_and_question(serve: Serve, provider: FakeReranker) -> None:
    async with serve(**settings(provider, reranker_api_key="secret")) as stub:
        await fill(stub)
        found = await search(stub, further_queries=["who bought it"], limit=2)
    assert found.reranked
    assert found.hits[0].text == SAID[1][1]
    assert found.hits[0].rerank_score == 1.0
    assert found.hits[0].score > found.hits[1].score
    assert len(found.hits) == 2
    (body,) = provider.bodies
    assert body["query"] == "boat\nwho bought it"
    assert "Tomas: Did you sell the boat?\nNora: Yes, to a baker from Bergen." in body["documents"]
    assert "Tomas: Did you sell the boat?" in body["documents"]
    assert provider.keys == ["Bearer secret"]


async def test_a_request_decides_whether_to_rerank(serve: Serve, provider: FakeReranker) -> None:
    async with serve(**settings(provider)) as stub:
        await fill(stub)
        first = await search(stub, rerank=False)
        assert not first.reranked
        assert not first.hits[0].HasField("rerank_score")
        assert (await search(stub)).reranked
        assert (await search(stub, rerank=True)).reranked
    assert len(provider.bodies) == 2


async def test_no_reranker_is_the_default(serve: Serve) -> None:
    async with serve() as stub:
        await fill(stub)
        found = await search(stub, rerank=True)
        assert found.hits
        assert not found.reranked


async def test_failing_reranker_leaves_the_ranking_and_is_not_called_for_a_while(
    serve: Serve, provider: FakeReranker
) -> None:
    provider.script = [PlainTextResponse("no", 401) for _ in range(9)]
    async with serve(**settings(provider)) as stub:
        await fill(stub)
        expected = [hit.text for hit in (await search(stub, rerank=False)).hits]
        for _ in range(6):
            found = await search(stub)
            assert [hit.text for hit in found.hits] == expected
            assert not found.reranked
            assert not found.degraded
    assert len(provider.bodies) == 3, "a circuit breaker stops the calls"


async def test_hanging_reranker_costs_its_time_limit_at_most(serve: Serve, provider: FakeReranker) -> None:
    provider.hold = asyncio.Event()
    async with serve(**settings(provider, reranker_timeout_ms=20)) as stub:
        await fill(stub)
        found = await search(stub)
    assert found.hits
    assert not found.reranked


async def test_the_query_itself_stays_first(serve: Serve, provider: FakeReranker) -> None:
    async with serve(**settings(provider)) as stub:
        await fill(stub)
        found = await search(stub, SAID[3][1])
    assert found.reranked
    assert found.hits[0].text == SAID[3][1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reranker": "acme/m"}, "MNEMESH_RERANKER: .*needs the base URL"),
        ({"reranker": "acme/m", "reranker_base_url": "http://x", "reranker_timeout_ms": 0}, "TIMEOUT_MS must be"),
        ({"reranker": "acme/m", "reranker_base_url": "http://x", "reranker_candidates": 1}, "CANDIDATES must be"),
    ],
)
async def test_wrong_settings_stop_the_start(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await assemble(Config(data_dir=str(tmp_path), **fields))
