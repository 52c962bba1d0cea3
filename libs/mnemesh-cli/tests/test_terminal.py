"""`mnemesh chat` on a terminal: live display, approvals and signals."""

import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from mnemesh_client import Mnemesh

from .terminal import PROMPT, Terminal

if TYPE_CHECKING:
    from mnemesh_testkit.mesh.fake_mesh import FakeMesh


@pytest_asyncio.fixture
async def terminal(mesh: "FakeMesh", mnemesh: Mnemesh) -> AsyncIterator[Terminal]:
    """A chat with an agent that has one block."""
    await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": "A person."})
    chat = Terminal(mesh.environment())
    await chat.open()
    yield chat
    await chat.close()


async def test_tool_calls_and_memory_edits_are_shown(terminal: Terminal) -> None:
    await terminal.see(PROMPT)
    terminal.type("remember Likes tea.\r")

    await terminal.see("▸ core_memory_append(label=")
    await terminal.see("✎ memory [human]")
    await terminal.see("+ Likes tea.")
    await terminal.see("You said: remember Likes tea.")
    await terminal.see(PROMPT)
    terminal.type("/memory\r")
    await terminal.see("A person.")
    await terminal.see(PROMPT)
    terminal.type("/quit\r")
    assert await terminal.wait() == 0


async def test_changes_of_memory_between_turns_are_shown_with_the_next_turn(
    terminal: Terminal, mnemesh: Mnemesh
) -> None:
    await terminal.see(PROMPT)
    terminal.type("hello\r")
    await terminal.see("You said: hello")
    await terminal.see(PROMPT)
    await (await mnemesh.agents.find("ada")).append("human", "Likes tea.")
    terminal.type("hello again\r")
    await terminal.see("✎ memory [human]")
    await terminal.see("+ Likes tea.")
    await terminal.see("You said: hello again")


async def test_user_decides_about_each_pending_call(terminal: Terminal, mesh: "FakeMesh") -> None:
    await terminal.see(PROMPT)
    terminal.type("launch\r")
    await terminal.see("? launch()")
    await terminal.see("run launch?")
    await terminal.see(PROMPT)
    terminal.type("y\r")
    await terminal.see("run launch?")
    await terminal.see(PROMPT)
    terminal.type("it rains\r")
    await terminal.see("You said: approve, deny")
    await terminal.see(PROMPT)
    assert [item.tool_call_id for item in mesh.orchestrator.decided] == ["call_1", "call_2"]
    assert mesh.orchestrator.decided[1].deny.reason == "it rains"


async def test_chat_starts_with_pending_approvals(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")
    mesh.orchestrator.request_approval(mesh.orchestrator.agents[agent.id], "launch")
    terminal = Terminal(mesh.environment())
    await terminal.open()
    try:
        await terminal.see("the agent is waiting for your approval:")
        await terminal.see("? launch()")
        await terminal.see("run launch?")
        await terminal.see(PROMPT)
        terminal.type("y\r")
        await terminal.see("You said: approve")
        await terminal.see(PROMPT)
        assert [item.tool_call_id for item in mesh.orchestrator.decided] == ["call_1"]
    finally:
        await terminal.close()


async def test_approvals_of_another_conversation_are_ignored(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")
    mesh.orchestrator.request_approval(mesh.orchestrator.agents[agent.id], "launch", conversation="conv-2")
    terminal = Terminal(mesh.environment())
    await terminal.open()
    try:
        assert "launch" not in await terminal.see(PROMPT)
    finally:
        await terminal.close()


async def test_ctrl_c_during_a_turn_cancels_only_the_turn(terminal: Terminal, mesh: "FakeMesh") -> None:
    await terminal.see(PROMPT)
    terminal.type("think forever\r")
    await terminal.see("You said: think forever")
    terminal.interrupt()

    await terminal.see("stopped")
    await terminal.see(PROMPT)
    terminal.type("hello\r")
    await terminal.see("You said: hello")
    assert mesh.orchestrator.cancelled == list(mesh.orchestrator.runs)[:1]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.full) for each in (signal.SIGTERM, signal.SIGHUP))]
)
async def test_signal_at_the_prompt_ends_the_chat_with_exit_code_0(terminal: Terminal, number: signal.Signals) -> None:
    await terminal.see(PROMPT)
    terminal.interrupt(number)

    assert await terminal.wait() == 0
