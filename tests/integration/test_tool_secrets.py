"""Environment variables of agents and tools in turns: passed to tools and MCP servers, and found nowhere else."""

from pathlib import Path

import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh.tools.v1 import mcp_servers_pb2, mcp_servers_service_pb2
from mnemesh_cli.agent_exports import RECORDS, export_records, import_records
from mnemesh_client import Agent
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.config import Config as OrchestratorConfig
from mnemesh_orchestrator.maintenance import maintain as maintain_orchestrator
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn
from mnemesh_tools.config import Config as ToolsConfig
from mnemesh_tools.maintenance import maintain as maintain_tools

MODEL = "openai/fake-model"
SECRETS = {"API_KEY": "planted-secret-of-the-agent", "SHARED": "shared value of the agent"}

CALL = '''
def call_api(agent_state: "AgentState") -> str:
    """Calls an API."""
    import os, sys
    for name in ("API_KEY", "SHARED", "OWN", "AGENT_ID", "LETTA_AGENT_ID", "PROJECT_ID"):
        print(name, os.environ.get(name), os.environ.get(name, "")[::-1])
    agent_state.memory.update_block_value("notes", "The key is " + os.environ["API_KEY"])
    print("failed with", os.environ["API_KEY"], file=sys.stderr)
    return "called with " + os.environ["API_KEY"]
'''


async def create(mesh: Mesh, **fields: object) -> Agent:
    return await mesh.client.agents.create(model=MODEL, blocks={"notes": ""}, **fields)  # type: ignore[arg-type]


@pytest.mark.mesh(in_memory=False)
async def test_secrets_of_an_agent_reach_its_tools_and_nothing_else(
    mesh: Mesh, fake_openai: FakeOpenAI, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tool = await mesh.client.tools.create(CALL, secrets={"SHARED": "shared value of the tool", "OWN": "of the tool"})
    agent = await create(mesh, tools=[tool.id], secrets=SECRETS)
    fake_openai.script = [Reply(tool_calls=[("call_api", {})]), "Done."]
    result = await turn(agent, "Call it.")
    returned = result.returns[0]
    assert returned.content[0].text.text == "called with [secret API_KEY]"
    shown = dict(line.split(" ", 1) for line in returned.stdout)
    assert shown["API_KEY"] == f"[secret API_KEY] {SECRETS['API_KEY'][::-1]}"
    assert shown["SHARED"].endswith(SECRETS["SHARED"][::-1])
    assert shown["OWN"].endswith("loot eht fo")
    assert shown["AGENT_ID"] == f"{agent.id} {agent.id[::-1]}"
    assert shown["LETTA_AGENT_ID"] == shown["AGENT_ID"]
    assert list(returned.stderr) == ["failed with [secret API_KEY]"]
    memory = await mesh.client.agents.stub.GetAgent(
        agents_service_pb2.GetAgentRequest(
            agent_id=agent.id, view=agents_service_pb2.AgentView(blocks=True, secrets=True)
        )
    )
    assert memory.core_memory.blocks[0].value == "The key is [secret API_KEY]"
    assert [(secret.key, secret.HasField("value")) for secret in memory.agent.secrets] == [
        ("API_KEY", False),
        ("SHARED", False),
    ]
    requests = " ".join(str(request.body) for request in fake_openai.requests)
    exported = tmp_path / "exported"
    await export_records(mesh.client, agent.id, exported / RECORDS, lambda _: None)
    files = "".join(path.read_text() for path in exported.rglob("*") if path.is_file())
    for text in (str(memory), str(result), requests, files, capsys.readouterr().out):
        assert SECRETS["API_KEY"] not in text
    assert "API_KEY" in files
    await mesh.client.agents.delete(agent.id)
    await mesh.client.tools.delete(tool.id)
    response = await import_records(mesh.client, exported / RECORDS, new_id("request"), lambda _: None)
    assert list(response.agent.secrets) == []
    stored = b"".join(path.read_bytes() for path in mesh.directory.rglob("*") if path.is_file())
    assert SECRETS["API_KEY"].encode() not in stored


async def test_secrets_of_an_agent_are_replaced_as_a_set(mesh: Mesh) -> None:
    agent = await create(mesh, secrets=SECRETS)
    before = agent.proto
    await agent.set_secrets({"SHARED": None, "NEW": "value"})
    assert [secret.key for secret in agent.proto.secrets] == ["SHARED", "NEW"]
    assert agent.proto.secrets[0] == before.secrets[1]
    assert agent.proto.revision == before.revision + 1
    with pytest.raises(InvalidArgument, match=r"agent\.secrets: GONE has no value"):
        await agent.set_secrets({"GONE": None})
    with pytest.raises(InvalidArgument, match="LD_PRELOAD changes how programs start"):
        await agent.set_secrets({"LD_PRELOAD": "x"})
    assert [secret.key for secret in (await mesh.client.agents.get(agent.id)).proto.secrets] == ["SHARED", "NEW"]
    await agent.set_secrets({})
    assert list(agent.proto.secrets) == []


async def test_repeated_creation_is_recognised_by_the_values(mesh: Mesh) -> None:
    first = await create(mesh, secrets=SECRETS, request_id="once")
    assert (await create(mesh, secrets=SECRETS, request_id="once")).id == first.id
    with pytest.raises(InvalidArgument, match="used before with other content"):
        await create(mesh, secrets={**SECRETS, "API_KEY": "another"}, request_id="once")


async def test_agent_with_a_partner_keeps_its_secrets_to_itself(mesh: Mesh) -> None:
    agent = await create(mesh, secrets=SECRETS)
    await agent.update(enable_sleeptime=True, secrets=[agents_pb2.Secret(key="API_KEY", value="another value")])
    assert [secret.key for secret in agent.proto.secrets] == ["API_KEY"]
    partners = [other async for other in mesh.client.agents.list() if other.id != agent.id]
    assert [list(partner.proto.secrets) for partner in partners] == [[]]


BACKWARDS = '''
def backwards() -> list:
    """Returns the environment, spelled backwards."""
    import os
    return [os.environ["OF_AGENT"][::-1], os.environ["OF_TOOL"][::-1]]
'''


async def test_key_of_secrets_can_be_replaced(tmp_path: Path) -> None:
    """The new key is put before the old one, maintenance encrypts everything with it, and the old one is removed."""
    keys, data = tmp_path / "keys", tmp_path / "data"
    data.mkdir()
    settings = {name: {"secrets_key_file": str(keys)} for name in ("orchestrator", "tools")}

    def write_keys(*names: str) -> None:
        keys.write_text("".join(f"{name * 32}\n" for name in names))

    write_keys("a")
    async with Mesh(data, settings=settings) as mesh:
        tool = await mesh.client.tools.create(BACKWARDS, secrets={"OF_TOOL": "value of the tool"})
        agent = await mesh.client.agents.create(tools=[tool.id], secrets={"OF_AGENT": "value of the agent"})
        server = mcp_servers_pb2.McpServer(name="unreachable")
        server.streamable_http.url = "http://127.0.0.1:9/"
        server.streamable_http.auth.token.value = "token of the server"
        await mesh.client.mcp_servers.stub.CreateMcpServer(
            mcp_servers_service_pb2.CreateMcpServerRequest(mcp_server=server)
        )
    write_keys("b", "a")
    for config, maintain, count in (
        (OrchestratorConfig(data_dir=str(data), secrets_key_file=str(keys)), maintain_orchestrator, 1),
        (ToolsConfig(data_dir=str(data), secrets_key_file=str(keys)), maintain_tools, 2),
    ):
        lines = [line async for line in maintain(config)]
        assert f"records with secrets encrypted again: {count}" in lines
        assert "records with secrets encrypted again: 0" in [line async for line in maintain(config)]
    write_keys("b")
    async with Mesh(data, settings=settings) as mesh:
        found = await mesh.client.agents.get(agent.id)
        assert found.proto.secrets == agent.proto.secrets
        request = agents_service_pb2.RunToolRequest(agent_id=agent.id, tool_name="backwards", arguments="{}")
        returned = await mesh.client.agents.stub.RunTool(request)
        assert returned.tool_return.content[0].text.text == "['tnega eht fo eulav', 'loot eht fo eulav']"
    write_keys("c")
    lines = [line async for line in maintain_tools(ToolsConfig(data_dir=str(data), secrets_key_file=str(keys)))]
    assert "records with secrets encrypted again: 0; without the key: 2" in lines
