"""The search of tools."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from mnemesh.tools.v1 import tools_pb2
from mnemesh.tools.v1 import tools_service_pb2 as pb
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.embedders import FakeReranker
from mnemesh_tools.config import Config

from .conftest import serve

TOOLS = {
    "get_weather": ("Returns the forecast for a city.", "city", "The town to look up."),
    "send_invoice": ("Mails a bill to a customer.", "customer", "Who has to pay."),
    "convert_currency": ("Converts an amount of money between currencies.", "amount", "How much."),
    "list_files": ("Lists the documents of a folder.", "folder", "Where to look."),
    "suche_zug": ("Sucht Verbindungen der Bahn zwischen zwei Bahnhöfen.", "bahnhof", "Der Startbahnhof."),
}


@pytest.fixture
def source() -> Any:
    def make(name: str) -> str:
        description, parameter, described = TOOLS[name]
        docstring = f"{description}\n\n    Args:\n        {parameter}: {described}\n"
        return f'def {name}({parameter}: str) -> str:\n    """{docstring}    """\n    return ""\n'

    return make


async def _store(stubs: Any, source: Any) -> None:
    for name in TOOLS:
        tool = tools_pb2.Tool(source_code=source(name), tags=["travel"] if name in ("get_weather", "suche_zug") else [])
        await stubs.tools.CreateTool(pb.CreateToolRequest(tool=tool))


async def _found(stubs: Any, query: str, **fields: Any) -> list[str]:
    custom = {"types": [tools_pb2.TOOL_TYPE_CUSTOM], **fields}
    answer = await stubs.tools.SearchTools(pb.SearchToolsRequest(query=query, **custom))
    assert [hit.score for hit in answer.hits] == sorted((hit.score for hit in answer.hits), reverse=True)
    return [hit.tool.name for hit in answer.hits]


async def test_queries_find_the_tool_that_does_it(stubs: Any, source: Any) -> None:
    await _store(stubs, source)
    for query, name in {
        "weather": "get_weather",
        "forecasts of cities": "get_weather",
        "who must pay": "send_invoice",
        "euros to dollars": "convert_currency",
        "documents": "list_files",
        "Bahnhof": "suche_zug",
        "send_invoice": "send_invoice",
    }.items():
        assert (await _found(stubs, query))[:1] == [name], query


async def test_long_queries_are_searched_by_their_first_words(stubs: Any, source: Any) -> None:
    await _store(stubs, source)
    words = " ".join(f"İß{number}" for number in range(1_000))
    assert (await _found(stubs, f"weather {words}"))[:1] == ["get_weather"]
    for query in (words, "ß" * 9_000 + "1n't", "İ" * 9_000):
        await _found(stubs, query)
    found = await stubs.tools.SearchTools(pb.SearchToolsRequest(query=f"{words} weather"))
    assert not any(hit.HasField("text_rank") for hit in found.hits)


async def test_queries_in_other_words_find_the_tool(embedded: Any, source: Any) -> None:
    await _store(embedded, source)
    for query, name in {
        "will it rain in Berlin": "get_weather",
        "do I need an umbrella tomorrow": "get_weather",
        "how hot is it outside": "get_weather",
        "charge a client for work": "send_invoice",
        "ask for payment": "send_invoice",
        "how much is 20 euros in yen": "convert_currency",
        "what's in this directory": "list_files",
    }.items():
        assert (await _found(embedded, query))[:1] == [name], query


async def test_words_are_searched_if_the_embedder_refuses(tmp_path: Path, source: Any) -> None:
    async with FakeReranker() as server:  # has no embeddings
        config = Config(
            port=0,
            data_dir=str(tmp_path),
            min_sandbox="minimal",
            warm_processes=0,
            embedder="acme/none",
            embedder_base_url=server.url,
            embedder_dimension=8,
        )
        async with serve(config) as stubs:
            await _store(stubs, source)
            assert await _found(stubs, "documents") == ["list_files"]


async def test_filters_limit_and_blank_queries(stubs: Any, source: Any) -> None:
    await _store(stubs, source)
    assert await _found(stubs, "documents weather", tags_any=["travel"]) == ["get_weather"]
    assert await _found(stubs, " ", limit=2) == ["suche_zug", "list_files"]
    assert len(await _found(stubs, "the city customer amount folder", limit=1)) == 1
    assert await _found(stubs, "xylophone qwertz") == []
    builtin = await stubs.tools.SearchTools(pb.SearchToolsRequest(query="search the messages of earlier conversations"))
    assert "conversation_search" in [hit.tool.name for hit in builtin.hits]


async def test_changed_and_deleted_tools(embedded: Any, source: Any) -> None:
    await _store(embedded, source)
    found = (await embedded.tools.SearchTools(pb.SearchToolsRequest(query="get_weather", limit=1))).hits[0].tool
    changed = tools_pb2.Tool(id=found.id, source_code=source("get_weather").replace("forecast", "temperature"))
    request = pb.UpdateToolRequest(tool=changed)
    request.update_mask.paths.append("source_code")
    await embedded.tools.UpdateTool(request)
    assert (await _found(embedded, "temperature"))[:1] == ["get_weather"]
    await embedded.tools.DeleteTool(pb.DeleteToolRequest(tool_id=found.id))
    assert "get_weather" not in await _found(embedded, "temperature")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": "x" * 10_001}, "query"),
        ({"query": "a\0b"}, "query"),
        ({"query": "a", "limit": 101}, "limit"),
        ({"query": "a", "limit": -1}, "limit"),
        ({"query": "a", "types": [99]}, "types"),
    ],
)
async def test_bad_requests_name_the_field(embedded: Any, fields: dict[str, Any], field: str) -> None:
    error = await catch_refusal(embedded.tools.SearchTools(pb.SearchToolsRequest(**fields)))
    assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
