"""The sources of an answer in a chat."""

import io

from mnemesh_cli.chat.agent_chat import AgentConversation
from mnemesh_cli.chat.render import LiveRenderer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from rich.console import Console


async def test_chat_shows_the_sources_of_an_answer(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda *_: Reply(text="At nine [handbook/hours.md:1-2], or later [handbook/none.md:3].")
    folder = await mesh.client.folders.create("handbook")
    stored = await mesh.client.files.upload(folder.id, b"The harbour opens\nat nine.\n", name="hours.md")
    await mesh.client.files.wait(stored.file.id)
    agent = await mesh.client.agents.create("ada", model="openai/fake-model")
    await agent.files.attach(folder.id)
    chat, screen = AgentConversation(mesh.client, agent), io.StringIO()
    chat.live, chat.renderer = True, LiveRenderer(Console(file=screen, width=100))

    assert await chat.send("When does the harbour open?")

    assert screen.getvalue().splitlines()[:4] == [
        "At nine [handbook/hours.md:1-2], or later [handbook/none.md:3].",
        "sources:",
        "  handbook/hours.md, lines 1–2",
        "  handbook/none.md, line 3 (not found)",
    ]
