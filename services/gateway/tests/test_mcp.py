"""/mcp with the reference client: tools over HTTP, each request for its own principal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mnemesh_client import Agent, Mnemesh
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal, Role
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

KEY = "k" * 32


@asynccontextmanager
async def connected(mesh: Mesh, token: str | None = None, agent: str = "") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://{mesh.addresses['gateway']}/mcp{agent}"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=scaled(60)) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content.get("result", result.structured_content)


async def test_tools_over_http(mesh: Mesh, agent: Agent, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text="Under the mat.")
    async with connected(mesh) as client:
        assert len((await client.list_tools()).tools) == 7
        await call(client, "remember", text="The key is under the mat.")
        (hit,) = await call(client, "search_memory", query="key", memory="passages")
        assert hit["text"] == "The key is under the mat."
        edited = await call(client, "edit_core_memory", label="human", new_text="Name: Ada")
        assert "Name: Ada" in edited["value"]
        assert (await call(client, "ask_agent", message="Where is the key?"))["reply"] == "Under the mat."
    memory = await mesh.client.blocks.core_memory(agent.id)
    assert "Name: Ada" in memory.blocks[0].value


async def test_path_binds_the_tools_to_an_agent(mesh: Mesh, agent: Agent, fake_openai: FakeOpenAI) -> None:
    other = await mesh.client.agents.create("bob", model="openai/fake-model", include_base_tools=False)
    for key in (agent.id, "ada"):
        async with connected(mesh, agent=f"/{key}") as client:
            assert [entry["name"] for entry in await call(client, "list_agents")] == ["ada"]
            await call(client, "remember", text=f"The key is under the mat of {key}.")
            await call(client, "remember", text="The mat is green.", agent="ada")
            refused = await client.call_tool("remember", {"text": "The mat is red.", "agent": "bob"})
            assert refused.is_error
    assert len([passage async for passage in mesh.client.passages.list(agent_id=agent.id)]) == 4
    assert [passage async for passage in mesh.client.passages.list(agent_id=other.id)] == []
    async with httpx2.AsyncClient(timeout=scaled(60)) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        headers = {"Accept": "application/json, text/event-stream"}
        missing = await http.post(f"http://{mesh.addresses['gateway']}/mcp/eve", json=body, headers=headers)
        assert missing.status_code == 404


async def test_each_request_is_for_its_own_principal(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    services = ("gateway", "orchestrator", "blocks", "recall", "archival", "tools")
    settings = {name: {"auth_key_file": str(keys)} for name in services}
    owners = [Principal(new_id("org"), new_id("user")) for _ in range(2)]
    tokens = [mint_token(KEY.encode(), owner, 60) for owner in owners]
    async with Mesh(tmp_path, gateway=True, settings=settings) as mesh:
        for name, token in zip(("mine", "theirs"), tokens, strict=True):
            async with Mnemesh(mesh.client.addresses, token=token) as owner:
                agent = await owner.agents.create(name)
        await _require_refusals(mesh, owners[1], agent.id)
        async with connected(mesh, tokens[0]) as mine, connected(mesh, tokens[1]) as theirs:
            for client, name in ((mine, "mine"), (theirs, "theirs"), (mine, "mine")):
                assert [entry["name"] for entry in await call(client, "list_agents")] == [name]
        async with httpx2.AsyncClient(timeout=scaled(60)) as http:
            refused = await http.post(f"http://{mesh.addresses['gateway']}/mcp", json={})
            assert refused.status_code == 401


async def _require_refusals(mesh: Mesh, owner: Principal, agent_id: str) -> None:
    """A reader changes nothing, and a token of an agent reaches no other agent."""
    reader = mint_token(KEY.encode(), owner, 60, role=Role.READER)
    limited = mint_token(KEY.encode(), replace(owner, agents=frozenset({new_id("agent")})), 60)
    async with connected(mesh, reader, f"/{agent_id}") as client:
        assert await call(client, "search_memory", query="mat") == []
        for tool, arguments in (("remember", {"text": "x"}), ("ask_agent", {"message": "x"})):
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert "requires the role writer. The caller has the role reader" in str(refused.content)
    async with connected(mesh, limited) as client:
        assert await call(client, "list_agents") == []
        for tool, arguments in (("remember", {"text": "x"}), ("search_memory", {"query": "x"})):
            refused = await client.call_tool(tool, {**arguments, "agent": agent_id})
            assert refused.is_error
            assert "limited to some agents" in str(refused.content)
