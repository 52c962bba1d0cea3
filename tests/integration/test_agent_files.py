"""Files of agents in a mesh: folders, the prompt, the tools, replaced and deleted files, and an outage."""

import asyncio
import base64
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh_client import Agent
from mnemesh_kit.errors import NotFound
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn
from mnemesh_testkit.timeouts import scaled

TOOLS = {"open_files", "grep_files", "semantic_search_files"}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
ENGINE = b"# Engine\n\nThe engine needs oil. Check it weekly.\nThe torque is 90 newton metres.\n"


def systems(fake: FakeOpenAI) -> list[str]:
    """The system messages of the requests since the last call."""
    found = [request.body["messages"][0]["content"] for request in fake.requests]
    fake.requests.clear()
    return found


async def tool_names(mesh: Mesh, agent: Agent) -> set[str]:
    """The tools of files that an agent has."""
    found = await mesh.client.agents.stub.GetAgent(agents_rpc.GetAgentRequest(agent_id=agent.id))
    return {tool.name for tool in found.agent.tools} & TOOLS


async def called(agent: Agent, fake: FakeOpenAI, tool: str, **arguments: Any) -> str:
    """Lets the model call a tool. Returns its text."""
    fake.script = [Reply(tool_calls=[(tool, arguments)]), "I see."]
    (returned,) = (await turn(agent, "Look it up.")).returns
    return "".join(part.text.text for part in returned.content)


async def uploaded(mesh: Mesh, folder_id: str, name: str, content: bytes, **options: Any) -> str:
    """The id of a file that is processed."""
    stored = await mesh.client.files.upload(folder_id, content, name=name, **options)
    return (await mesh.client.files.wait(stored.file.id, timeout=scaled(60))).id


async def test_an_agent_opens_searches_and_cites_files(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await mesh.client.agents.create(model="openai/fake-model")
    folder = await mesh.client.folders.create("manuals", description="Of machines.")
    engine = await uploaded(mesh, folder.id, "engine.md", ENGINE)
    await agent.files.attach(folder.id)
    assert await tool_names(mesh, agent) == TOOLS

    opened = await called(agent, fake_openai, "open_files", file_requests=[{"file_name": "manuals/engine.md"}])
    assert opened == "* Opened manuals/engine.md"
    before, after = systems(fake_openai)
    assert '<directory name="manuals">\n<description>Of machines.</description>\n' in before
    assert '<file status="closed" name="manuals/engine.md">' in before
    rows = "1: # Engine\n2:\n3: The engine needs oil.\n3: Check it weekly.\n4: The torque is 90 newton metres."
    assert f"<value>\n[Viewing file start (out of 4 lines)]\n{rows}\n</value>" in after

    assert "=== manuals/engine.md:4 ===" in await called(agent, fake_openai, "grep_files", pattern="TORQUE")
    found = await called(agent, fake_openai, "semantic_search_files", query="engine oil")
    assert "=== manuals/engine.md:1-4 ===" in found
    cited = await agent.files.stub.ResolveCitations(
        rpc.ResolveCitationsRequest(agent_id=agent.id, text="90 Nm [manuals/engine.md:4].")
    )
    assert cited.citations[0].quote == "The torque is 90 newton metres."

    systems(fake_openai)
    await uploaded(mesh, folder.id, "engine.md", b"Electric now.", on_duplicate="replace")
    fake_openai.script = ["It is electric."]
    await turn(agent, "And now?")
    assert "1: Electric now." in systems(fake_openai)[0]
    assert "90 newton" not in await called(agent, fake_openai, "semantic_search_files", query="newton metres")
    await mesh.client.files.delete(engine)
    with pytest.raises(NotFound):
        await agent.files.open("manuals/engine.md")
    systems(fake_openai)
    await agent.files.detach(folder.id)
    assert await tool_names(mesh, agent) == set()
    fake_openai.script = ["Bye."]
    await turn(agent, "Bye.")
    assert "<directories>" not in systems(fake_openai)[0]


async def test_a_model_that_reads_images_sees_an_image_that_it_opens(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    seeing = await mesh.client.agents.create(model="openai/gpt-4o")
    folder = await mesh.client.folders.create("photos")
    await uploaded(mesh, folder.id, "pixel.png", PIXEL)
    await seeing.files.attach(folder.id)
    request = {"file_requests": [{"file_name": "photos/pixel.png"}]}
    assert await called(seeing, fake_openai, "open_files", **request) == "* Opened photos/pixel.png"
    _, after = fake_openai.requests
    _, image = after.body["messages"][-1]["content"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"

    blind = await mesh.client.agents.create(model="openai/fake-model")
    await blind.files.attach(folder.id)
    fake_openai.requests.clear()
    await called(blind, fake_openai, "open_files", **request)
    _, after = fake_openai.requests
    assert "the model reads text only" in after.body["messages"][-1]["content"]
    assert "base64" not in str(after.body)


@pytest.mark.mesh(in_memory=False)
async def test_a_folder_that_was_attached_during_an_outage_is_announced_later(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create()
    folder = await mesh.client.folders.create("manuals")
    await uploaded(mesh, folder.id, "engine.md", ENGINE)
    await mesh.stop("orchestrator")
    request = rpc.AttachFolderRequest(agent_id=agent.id, folder_id=folder.id)
    assert (await mesh.stubs.agent_files.AttachFolder(request)).folder_count == 1
    await mesh.start("orchestrator")
    async with asyncio.timeout(scaled(30)):
        while await tool_names(mesh, agent) != TOOLS:
            await asyncio.sleep(0.05)
