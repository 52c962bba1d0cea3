"""`mnemesh chat` in the process of the test, on a pseudo-terminal: editing, commands and earlier turns."""

import asyncio
import os
import pty
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from mnemesh_cli.chat.agent_chat import before_last_message
from mnemesh_cli.commands.chat import converse
from mnemesh_client import Agent, Mnemesh, NotFound
from mnemesh_testkit.timeouts import scaled

from .terminal import PROMPT

if TYPE_CHECKING:
    from mnemesh_testkit.mesh.fake_mesh import FakeMesh
    from mnemesh_testkit.mesh.in_process import MeshThread


class Chat:
    """A chat with an agent. `task` returns its exit code."""

    def __init__(self, mnemesh: Mnemesh, agent: Agent, keyboard: int) -> None:
        self._keyboard, self._screen = keyboard, ""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(keyboard, self._read)
        self.task = asyncio.ensure_future(converse(mnemesh, agent))

    def _read(self) -> None:
        self._screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(self._keyboard, 65536).decode(errors="replace"))
        self._more.set()

    async def see(self, text: str) -> None:
        """Waits until `text` is on the screen. The next call looks behind it."""
        while text not in self._screen:
            self._more.clear()
            try:
                async with asyncio.timeout(scaled(120)):
                    await self._more.wait()
            except TimeoutError:
                pytest.fail(f"{text!r} is not on the screen: {self._screen!r}")
        self._screen = self._screen.partition(text)[2]

    def type(self, text: str) -> None:
        """Types text."""
        os.write(self._keyboard, text.encode())

    async def close(self) -> None:
        """Ends the chat."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        asyncio.get_running_loop().remove_reader(self._keyboard)


@asynccontextmanager
async def chatting(mnemesh: Mnemesh, agent: Agent) -> AsyncIterator[Chat]:
    """Within it, an agent is chatted with on a terminal of 200 columns.

    It is not a fixture, because pytest replaces the standard streams between the setup of a test and the test.
    """
    keyboard, inner = pty.openpty()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(inner, "r") as stdin, os.fdopen(os.dup(inner), "w") as stdout:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "200")
        for name, file in {"stdin": stdin, "stdout": stdout, "stderr": stdout}.items():
            patch.setattr(sys, name, file)
        chat = Chat(mnemesh, agent, keyboard)
        try:
            yield chat
        finally:
            await chat.close()
    os.close(keyboard)


@pytest_asyncio.fixture
async def agent(mnemesh: Mnemesh) -> Agent:
    """An agent that has one block."""
    return await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": "A person."})


async def test_pasted_text_of_several_lines_is_one_message(mnemesh: Mnemesh, agent: Agent) -> None:
    async with chatting(mnemesh, agent) as chat:
        await chat.see(PROMPT)
        chat.type("\x1b[200~first\r\nsecond\n\nthird\x1b[201~")
        await chat.see("third")
        chat.type("\r")
        await chat.see("You said: first")
        await chat.see("second")
        await chat.see("third")
        await chat.see(PROMPT)
        chat.type("\x1b[A\r")  # the message is in the history of the session
        await chat.see("You said: first")


async def test_commands_never_reach_the_agent(mnemesh: Mnemesh, agent: Agent, mesh: "FakeMesh") -> None:
    async with chatting(mnemesh, agent) as chat:
        await chat.see(PROMPT)
        chat.type("/remember tea\r")
        await chat.see("There is no command /remember. Use /new, /undo, /model, /search, /memory, /help, /quit")
        await chat.see(PROMPT)
        chat.type("/help\r")
        await chat.see("/model [HANDLE]")
        await chat.see("Ctrl-C")
        await chat.see(PROMPT)
        chat.type("/search\r")
        await chat.see("Type `/search TEXT`")
        await chat.see(PROMPT)
        chat.type("/model\r")
        await chat.see("› mnemesh/rehearsal")
        await chat.see("openai/small")
        await chat.see(PROMPT)
        chat.type("/model openai/small\r")
        await chat.see("ada uses openai/small")
        assert mesh.orchestrator.runs == {}
        await chat.see(PROMPT)
        chat.type(" /etc is a directory\r")
        await chat.see("You said: /etc is a directory")
        await chat.see(PROMPT)
        chat.type("/new\r")
        await chat.see("new conversation; `mnemesh chat --agent")
        await chat.see(PROMPT)
        chat.type("hello\r")
        await chat.see("You said: hello")
        first, second = mesh.orchestrator.conversations
        assert first == ""
        assert second.startswith("conv-")


async def test_ctrl_c_clears_the_text_before_it_leaves(mnemesh: Mnemesh, agent: Agent, mesh: "FakeMesh") -> None:
    async with chatting(mnemesh, agent) as chat:
        await chat.see(PROMPT)
        chat.type("hello")
        await chat.see("hello")
        chat.type("\x03/help\r")
        await chat.see("/model [HANDLE]")
        await chat.see(PROMPT)
        chat.type("\x03")
        assert await chat.task == 0
        assert mesh.orchestrator.runs == {}


async def test_chat_starts_with_the_turn_that_an_earlier_chat_left(
    mnemesh: Mnemesh, agent: Agent, mesh: "FakeMesh"
) -> None:
    run_id = await mesh.orchestrator.leave_run(agent.id, "Are you there?")
    async with chatting(mnemesh, agent) as chat:
        await chat.see("the agent is still answering an earlier message:")
        await chat.see("You said: Are you there?")
        await chat.see(PROMPT)
    assert list(mesh.orchestrator.runs) == [run_id]


def test_messages_are_taken_back_until_none_is_left(running: "MeshThread") -> None:
    client, run = running.mesh.client, running.run
    agent = run(client.agents.create("forgetful", model="mnemesh/rehearsal", blocks={"human": ""}))
    for text in ("My name is Grace.", "I like tea."):
        run(agent.ask(text))
    conversation, taken = agent.proto.default_conversation_id, []
    for _ in range(2):
        text, conversation = run(before_last_message(client, conversation))
        taken.append(text)
    assert taken == ["I like tea.", "My name is Grace."]
    with pytest.raises(NotFound, match="no message to take back"):
        run(before_last_message(client, conversation))
