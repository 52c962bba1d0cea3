"""The memory of agents as an MCP server, used with the reference client over stdio and streamable HTTP."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_client.inputs import text_part
from mnemesh_client.mcp_server import memory_server
from mnemesh_kit.ids import new_id
from mnemesh_testkit.mesh.in_process import REHEARSAL, Mesh


async def agent_of(mesh: Mesh, name: str = "ada", **fields: Any) -> Agent:
    return await mesh.client.agents.create(
        name=name, model=REHEARSAL, blocks={"human": "Nothing yet.", "persona": "Kind."}, **fields
    )


@asynccontextmanager
async def connected(mesh: Mesh, agent: str | None = None) -> AsyncIterator[Client]:
    async with Client(memory_server(lambda _: mesh.client, agent)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Returns the structured result of a tool."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    structured = result.structured_content
    assert structured is not None
    return structured.get("result", structured)


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return "\n".join(getattr(part, "text", "") for part in result.content)


async def test_tools_are_described(mesh: Mesh) -> None:
    async with connected(mesh) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {
        *("list_agents", "search_memory", "remember", "read_core_memory", "edit_core_memory", "rewrite_core_memory"),
        "ask_agent",
    }
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema
        assert "context" not in tool.input_schema["properties"]
        assert all("description" in schema for schema in tool.input_schema["properties"].values()), tool.name
    assert tools["search_memory"].annotations is not None
    assert tools["search_memory"].annotations.read_only_hint


async def test_facts_are_stored_and_found(mesh: Mesh) -> None:
    agent = await agent_of(mesh)
    async with connected(mesh) as client:
        stored = await call(client, "remember", text="The key is under the mat.", tags=["house"])
        (hit,) = await call(client, "search_memory", query="key", memory="passages")
        assert (hit["kind"], hit["text"], hit["tags"]) == ("passage", "The key is under the mat.", ["house"])
        answer = await call(client, "ask_agent", message="My name is Ada.")
        assert "Ada" in answer["reply"]
        hits = await call(client, "search_memory", query="name", memory="messages")
        assert "My name is Ada." in [hit["text"] for hit in hits if hit["role"] == "user"]
    passages = [passage.id async for passage in agent.passages()]
    assert passages == [stored["passage_id"]]
    assert (await mesh.client.runs.get(answer["run_id"])).agent_id == agent.id


async def test_found_messages_say_who_said_them_and_around_what(mesh: Mesh) -> None:
    agent = await agent_of(mesh)
    texts = [("Zoë", "Where do you live?"), ("Ada", "In a lighthouse."), ("Zoë", "Alone?"), ("Bob", "I like boats.")]
    said = [
        message_pb2.Message(id=new_id("message"), role=message_pb2.ROLE_USER, name=name, content=[text_part(text)])
        for name, text in texts
    ]
    await mesh.client.messages.stub.AppendMessages(
        messages_service_pb2.AppendMessagesRequest(agent_id=agent.id, messages=said)
    )
    async with connected(mesh) as client:
        asked = {"query": "lighthouse yesterday", "further_queries": ["boats"], "surrounding": 1}
        hits = {hit["text"]: hit for hit in await call(client, "search_memory", **asked)}
        found = hits["In a lighthouse."]
        assert (found["speaker"], found["question"]) == ("Ada", "Where do you live?")
        assert found["before"] == [{"speaker": "Zoë", "text": "Where do you live?"}]
        assert found["after"] == [{"speaker": "Zoë", "text": "Alone?"}]
        assert "I like boats." in hits
        (only,) = await call(client, "search_memory", query="lighthouse", further_queries=["boats"], speakers=["BOB"])
        assert (only["text"], only["before"], only["question"]) == ("I like boats.", [], "Alone?")


async def test_core_memory_is_read_and_edited(mesh: Mesh) -> None:
    agent = await agent_of(mesh)
    async with connected(mesh, "ada") as client:
        blocks = {block["label"]: block for block in await call(client, "read_core_memory")}
        assert blocks["human"]["value"] == "Nothing yet."
        await call(client, "edit_core_memory", label="human", old_text="Nothing yet.", new_text="Name: Ada.")
        edited = await call(client, "edit_core_memory", label="human", new_text="Lives in Turin.")
        assert edited["value"] == "Name: Ada.\nLives in Turin."

        outdated = blocks["human"]["revision"]
        problem = await refusal(client, "rewrite_core_memory", label="human", value="Empty.", revision=outdated)
        assert "BLOCK_REVISION_MISMATCH: " in problem
        await call(client, "rewrite_core_memory", label="human", value="Ada, Turin.", revision=edited["revision"])
    assert {block.label: block.value for block in (await agent.memory()).blocks}["human"] == "Ada, Turin."


async def test_agent_is_named_if_there_are_several(mesh: Mesh) -> None:
    async with connected(mesh) as client:
        assert "There are no agents." in await refusal(client, "read_core_memory")
        await agent_of(mesh)
        second = await agent_of(mesh, "bob")
        assert {entry["name"] for entry in await call(client, "list_agents")} == {"ada", "bob"}
        assert "There are several agents." in await refusal(client, "remember", text="Tea.")
        await call(client, "remember", text="Tea.", agent="bob")
        assert await refusal(client, "remember", text="Tea.", agent="nobody")
    assert [passage.text async for passage in second.passages()] == ["Tea."]


BAD_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("search_memory", {"query": ""}, "query"),
    ("search_memory", {"query": "key", "limit": 0}, "limit"),
    ("search_memory", {"query": "key", "memory": "dreams"}, "memory"),
    ("search_memory", {"query": "key", "start_date": "yesterday"}, "start_date"),
    ("search_memory", {"query": "key", "further_queries": ["x"] * 10}, "further_queries"),
    ("search_memory", {"query": "key", "further_queries": ["x" * 10_001]}, "further_queries[0]"),
    ("search_memory", {"query": "key", "speakers": [" "]}, "speakers[0]"),
    ("search_memory", {"query": "key", "speakers": ["Ada"], "memory": "passages"}, "speakers"),
    ("search_memory", {"query": "key", "surrounding": -1}, "surrounding"),
    ("remember", {"text": ""}, "text"),
    ("edit_core_memory", {"label": "nothing", "new_text": "x"}, "nothing"),
    ("rewrite_core_memory", {"label": "human", "value": "x"}, "revision"),
]


async def test_bad_arguments_are_refused_by_name(mesh: Mesh) -> None:
    agent = await agent_of(mesh)
    async with connected(mesh) as client:
        for tool, arguments, named in BAD_ARGUMENTS:
            assert named in await refusal(client, tool, **arguments), (tool, arguments)
    assert [passage async for passage in agent.passages()] == []


async def test_pending_approval_is_reported(mesh: Mesh) -> None:
    agent = await agent_of(mesh)
    await agent.set_tool_approval("archival_memory_insert")
    async with connected(mesh) as client:
        problem = await refusal(client, "ask_agent", message="Remember that the key is under the mat.")
    assert "waits for an approval of archival_memory_insert" in problem


async def test_server_runs_over_streamable_http(mesh: Mesh) -> None:
    await agent_of(mesh)
    app = memory_server(lambda _: mesh.client).streamable_http_app(stateless_http=True, host="memory.test")
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://memory.test")
    transport = streamable_http_client("http://memory.test/mcp", http_client=http)
    async with app.router.lifespan_context(app), http, Client(transport) as client:
        assert [entry["name"] for entry in await call(client, "list_agents")] == ["ada"]


async def test_command_serves_standard_input_and_output(mesh: Mesh) -> None:
    await agent_of(mesh)
    addresses = mesh.client.addresses
    environment = {
        f"MNEMESH_{name}_TARGET": getattr(addresses, name.lower()) for name in ("BLOCKS", "RECALL", "ARCHIVAL")
    }
    environment["MNEMESH_TARGET"] = addresses.orchestrator
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "mnemesh_cli", "mcp", "--agent", "ada"], env=environment
    )
    async with Client(stdio_client(command)) as client:
        await call(client, "remember", text="The key is under the mat.")
        (hit,) = await call(client, "search_memory", query="key", memory="passages")
    assert hit["text"] == "The key is under the mat."
