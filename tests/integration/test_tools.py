"""Custom tools in turns: sandboxed, limited, and optional while the tools service is unavailable."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from mnemesh.agents.v1 import runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.processes import descendants
from mnemesh_testkit.mesh.turns import assert_whole, texts, tool_texts, turn, window_of
from mnemesh_testkit.timeouts import scaled

MODEL = "openai/fake-model"

ADD = '''
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b
'''

ENVIRONMENT = '''
def environment() -> str:
    """Reads whatever it can of the server."""
    import os
    found = dict(os.environ)
    for pid in ["self", "1", *map(str, range(2, 400))]:
        try:
            found[pid] = open(f"/proc/{pid}/environ", "rb").read().decode(errors="replace")
        except OSError:
            pass
    return repr(found)
'''

FORK_BOMB = '''
def fork_bomb() -> str:
    """Forks until it is stopped."""
    import os
    while True:
        os.fork()
'''

WAITS = '''
def wait() -> str:
    """Waits for long."""
    import time
    time.sleep(600)
    return "waited"
'''

BEGINS = "archival_memory_insert(content='begun')\n"

TAKES_NOTES = '''
def take_note(agent_state: "AgentState", note: str) -> str:
    """Adds a note to the block notes.

    Args:
        note: the note.
    """
    agent_state.memory.update_block_value("notes", agent_state.memory.get_block("notes").value + note)
    return "noted"
'''


async def create(mesh: Mesh, *sources: str, **options: Any) -> Agent:
    return await mesh.client.agents.create(model=MODEL, tool_sources=sources, **options)


async def test_custom_tool_runs_in_a_turn(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh, ADD)
    fake_openai.script = [Reply(tool_calls=[("add", {"a": 19, "b": 23})]), "42."]
    result = await turn(agent, "What is 19 + 23?")
    assert result.said == "42."
    assert result.returns[0].status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
    assert '"42"' in tool_texts(fake_openai.requests[1].body)[0]
    offered = {tool["function"]["name"]: tool["function"] for tool in fake_openai.requests[0].body["tools"]}
    assert offered["add"]["description"] == "Adds two numbers."
    assert set(offered["add"]["parameters"]["required"]) == {"a", "b"}
    assert_whole(await window_of(mesh.client, agent))


async def test_tool_cannot_read_data_of_the_server(
    mesh: Mesh, fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNEMESH_TEST_SECRET", "the-servers-secret")
    agent = await create(mesh, ENVIRONMENT)
    fake_openai.script = [Reply(tool_calls=[("environment", {})]), "Nothing."]
    result = await turn(agent, "Look around.")
    returned = result.returns[0]
    assert returned.status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
    assert "the-servers-secret" not in str(returned)
    assert "sk-test" not in str(returned)
    assert str(mesh.directory) not in str(returned)


async def test_fork_bomb_is_contained_and_the_turn_continues(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    before = descendants(os.getpid())
    agent = await create(mesh, FORK_BOMB, ADD)
    fake_openai.script = [
        Reply(tool_calls=[("fork_bomb", {})]),
        Reply(tool_calls=[("add", {"a": 1, "b": 1})]),
        "Two.",
    ]
    result = await turn(agent, "Boom.")
    assert result.said == "Two."
    assert [item.status for item in result.returns] == [
        message_pb2.TOOL_RETURN_STATUS_ERROR,
        message_pb2.TOOL_RETURN_STATUS_SUCCESS,
    ]
    async with asyncio.timeout(scaled(60)):
        # Processes of the sandbox itself end a moment after the answer, when the kernel has removed their namespaces.
        while not descendants(os.getpid()) <= before:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "sandboxes"),
    [(f"{BEGINS}import time\ntime.sleep(600)", 1), (f"{BEGINS}wait()", 2)],
    ids=["in the program", "in a tool that it calls"],
)
async def test_cancelled_run_ends_its_program_and_the_tool_that_it_calls(
    mesh: Mesh, fake_openai: FakeOpenAI, code: str, sandboxes: int
) -> None:
    before = descendants(os.getpid())
    agent = await create(mesh, WAITS, tools=["run_code_with_tools", "archival_memory_insert"])
    fake_openai.script = [Reply(tool_calls=[("run_code_with_tools", {"code": code})]), "Back."]
    run = await mesh.client.runs.start(agent.id, "Work for long.")
    async with asyncio.timeout(scaled(60)):
        while [p.text async for p in mesh.client.passages.list()] != ["begun"] or _sandboxes() < sandboxes:
            await asyncio.sleep(0.01)

    assert await mesh.client.runs.cancel(run.id) == {run.id: runs_service_pb2.CANCEL_OUTCOME_CANCELLED}

    async with asyncio.timeout(scaled(60)):
        while not descendants(os.getpid()) <= before:
            await asyncio.sleep(0.01)
    rows = await window_of(mesh.client, agent)
    assert_whole(rows)
    assert [item.status for row in rows for item in row.tool_returns] == [message_pb2.TOOL_RETURN_STATUS_ERROR]
    assert (await turn(agent, "Hello?")).said == "Back."
    assert [p.text async for p in mesh.client.passages.list()] == ["begun"]


def _sandboxes() -> int:
    """Returns the number of sandboxes that this process has started and that have not ended."""
    return sum(
        "inside/start.py" in Path("/proc", pid, "cmdline").read_text()
        for file in Path("/proc/self/task").glob("*/children")
        for pid in file.read_text().split()
    )


async def test_tool_changes_the_blocks_of_its_agent(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh, TAKES_NOTES, blocks={"notes": "One. "})
    fake_openai.script = [Reply(tool_calls=[("take_note", {"note": "Two."})]), "Done."]
    result = await turn(agent, "Note it.")
    assert result.returns[0].status == message_pb2.TOOL_RETURN_STATUS_SUCCESS, result.returns[0]
    assert (await agent.memory()).blocks[0].value == "One. Two."
    assert "One. Two." in texts(fake_openai.requests[1].body)[0]


@pytest.mark.mesh(settings={"orchestrator": {"degrade_seconds": scaled(1)}})
async def test_outage_of_the_tools_service_keeps_built_in_tools_and_is_noted_in_the_request(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    agent = await create(mesh, ADD, type="memgpt_v2", blocks={"human": "", "persona": ""})
    before = texts(await _request_of(mesh, fake_openai, agent))[0]
    await mesh.stop("tools")
    fake_openai.script = [
        Reply(
            tool_calls=[("archival_memory_insert", {"content": "Kept.", "request_heartbeat": True, "thinking": "."})]
        ),
        Reply(tool_calls=[("send_message", {"message": "Still here.", "thinking": "."})]),
    ]
    result = await turn(agent, "Hello?")
    assert result.said == "Still here."
    assert [passage.text async for passage in agent.passages()] == ["Kept."]
    request = fake_openai.requests[-2].body
    assert "cannot be reached" in texts(request)[-1]
    assert "add" not in [tool["function"]["name"] for tool in request["tools"]]
    assert texts(request)[0] == before, "what is away for a moment was written into the stored system message"
    assert "cannot be reached" not in str(await window_of(mesh.client, agent))


async def _request_of(mesh: Mesh, fake: FakeOpenAI, agent: Agent) -> dict[str, Any]:
    fake.script = [Reply(tool_calls=[("send_message", {"message": "Hi.", "thinking": "."})])]
    await turn(agent, "Hello")
    return fake.requests[-1].body
