"""Tools that run outside of turns, and previews of requests."""

import json

import pytest
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import models_service_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import REHEARSAL, Mesh

ADD = '''
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b
'''


async def test_tools_with_hosts_and_packages_are_stored_and_found(mesh: Mesh) -> None:
    tool = await mesh.client.tools.create(ADD, packages=["numpy>=2,<3"], hosts=["api.example.com"])
    assert [(item.name, item.version) for item in tool.pip_requirements] == [("numpy", ">=2,<3")]
    assert list(tool.network_hosts) == ["api.example.com"]
    assert (await mesh.client.tools.search("sum of numbers"))[0].tool.name == "add"
    changed = await mesh.client.tools.upsert(ADD, hosts=["example.org"])
    assert (changed.id, list(changed.network_hosts)) == (tool.id, ["example.org"])


async def test_owner_runs_a_tool(mesh: Mesh) -> None:
    tool = await mesh.client.tools.create(ADD)
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "", "persona": ""}, tools=[tool.name])

    async def run(name: str, arguments: object, request_id: str) -> message_pb2.ToolReturn:
        text = json.dumps(arguments)
        request = rpc.RunToolRequest(request_id=request_id, agent_id=agent.id, tool_name=name, arguments=text)
        return (await mesh.stubs.agents.RunTool(request)).tool_return  # type: ignore[no-any-return]

    summed = await run("add", {"a": 2, "b": 40}, "r-1")
    assert (summed.status, summed.content[0].text.text) == (message_pb2.TOOL_RETURN_STATUS_SUCCESS, "42")
    for _ in range(2):
        noted = await run("archival_memory_insert", {"content": "The key is under the mat."}, "r-2")
        assert noted.status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
    assert [passage.text async for passage in agent.passages()] == ["The key is under the mat."]
    await run("memory_insert", {"label": "human", "new_str": "Ada"}, "r-3")
    assert "Ada" in next(block.value for block in (await agent.memory()).blocks if block.label == "human")
    refused = await run("memory_insert", {"label": "no such block", "new_str": "Ada"}, "r-4")
    assert refused.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    with pytest.raises(NotFound):
        await run("no_such_tool", {}, "r-5")


async def test_preview_equals_the_body_sent_to_the_provider(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await mesh.client.agents.create(model="openai/fake-model", blocks={"human": "", "persona": ""})
    text = message_pb2.ContentPart(text=message_pb2.TextPart(text="Hello"))
    request = rpc.PreviewRequestRequest(agent_id=agent.id, messages=[runs_pb2.InputMessage(content=[text])])
    shown = json.loads((await mesh.stubs.agents.PreviewRequest(request)).request_body)
    assert fake_openai.requests == []
    assert [run async for run in mesh.client.runs.list()] == []
    assert shown["messages"][-1]["role"] == "user"
    assert "Hello" in shown["messages"][-1]["content"]
    fake_openai.script = ["Hello."]
    await agent.ask("Hello")
    sent = fake_openai.requests[0].body
    assert [message["role"] for message in sent["messages"]] == [message["role"] for message in shown["messages"]]
    assert (sent["model"], sent.get("tools")) == (shown["model"], shown.get("tools"))


async def test_available_models_are_listed(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    listed = (
        await mesh.stubs["mnemesh.agents.v1.ModelService"].ListModels(models_service_pb2.ListModelsRequest())
    ).models
    handles = [model.handle for model in listed]
    assert handles == sorted(handles)
    assert {"mnemesh/rehearsal", "openai/fake-model"} <= set(handles)
