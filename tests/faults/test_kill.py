"""kill -9 of every process, between turns and at known points of one: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from engram.types.v1 import message_pb2
from engram_client import Agent
from engram_kit.ids import new_id
from engram_testkit.fakes.openai import FakeOpenAI
from engram_testkit.fakes.script import Call, Reply
from engram_testkit.processes import ProcessMesh
from engram_testkit.stubs import ROOMS
from engram_testkit.turns import Turn, assert_whole, stored, turn, window_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

MODEL = "openai/fake-model"
PATIENCE = 60.0

COUNTER = '''
def count_up(path: str) -> str:
    """Adds a line to a file.

    Args:
        path: the file.
    """
    with open(path, "a") as file:
        file.write("ran\\n")
    return "counted"
'''


async def create(mesh: ProcessMesh, **options: Any) -> Agent:
    return await mesh.client.agents.create(model=MODEL, blocks={"human": "A human."}, **options)


def both(fact: str) -> Reply:
    """One answer with two effects in two tiers."""
    return Reply(
        text="I store both.",
        tool_calls=[
            Call("archival_memory_insert", {"content": fact}),
            Call("memory_insert", {"label": "human", "new_str": fact}),
        ],
    )


class Killed:
    """A turn of two steps with four effects, a kill in its middle, and what must hold afterwards."""

    def __init__(self, mesh: ProcessMesh, provider: FakeOpenAI, agent: Agent) -> None:
        self.mesh, self.provider, self.agent = mesh, provider, agent
        self.first, self.second = f"The first fact {new_id('x')[-6:]}.", f"The second fact {new_id('x')[-6:]}."
        self.gate = asyncio.Event()
        self.asked = len(provider.requests)

    def begin(self, *, gates: Sequence[asyncio.Event] = ()) -> asyncio.Task[Turn]:
        self.provider.script = [
            both(self.first),
            both(self.second),
            Reply(text="Both are stored.", gates=list(gates)),
            "Goodbye.",
        ]
        return asyncio.create_task(turn(self.agent, "Store both facts.", stream_tokens=True))

    async def ends_well(self, running: asyncio.Task[Turn], *, asked_again: int = 0) -> None:
        async with asyncio.timeout(PATIENCE):
            heard = await running
        assert (heard.status, heard.said.splitlines()[-1]) == ("COMPLETED", "Both are stored."), heard.error
        assert heard.sequences == list(range(1, len(heard.sequences) + 1)), "the client missed or repeated an event"
        assert len(self.provider.requests) - self.asked == 3 + asked_again
        await self._each_effect_happened_once()
        await self._history_is_whole()
        await self._next_request_has_the_same_prefix()

    async def _each_effect_happened_once(self) -> None:
        passages = [passage.text async for passage in self.agent.passages(order="asc")]
        assert passages == [self.first, self.second]
        block = (await self.agent.memory()).blocks[0]
        assert block.value.splitlines() == ["A human.", self.first, self.second]

    async def _history_is_whole(self) -> None:
        window = await window_of(self.mesh.client, self.agent)
        assert_whole(window)
        roles = [message_pb2.Role.Name(row.role).removeprefix("ROLE_") for row in window]
        assert roles == ["USER", "ASSISTANT", "TOOL", "ASSISTANT", "TOOL", "ASSISTANT"]
        assert [row.id for row in await stored(self.agent)] == [row.id for row in window]
        statuses = [item.status for row in window for item in row.tool_returns]
        assert statuses == [message_pb2.TOOL_RETURN_STATUS_SUCCESS] * 4

    async def _next_request_has_the_same_prefix(self) -> None:
        """What the provider saw last stands at the head of what it sees next, byte for byte."""
        before = self.provider.requests[-1].body
        heard = await turn(self.agent, "Goodbye.")
        assert heard.said == "Goodbye."
        after = self.provider.requests[-1].body
        length = len(before["messages"])
        assert json.dumps(after["messages"][:length]) == json.dumps(before["messages"])
        assert json.dumps(after["tools"]) == json.dumps(before["tools"])


@pytest.fixture
async def killed(mesh: ProcessMesh, provider: FakeOpenAI) -> Killed:
    return Killed(mesh, provider, await create(mesh))


@pytest.mark.parametrize("room", ROOMS)
async def test_between_turns(mesh: ProcessMesh, provider: FakeOpenAI, room: str) -> None:
    agent = await create(mesh)
    provider.script = [both("The key is under the mat."), "Stored.", "It is under the mat."]
    await turn(agent, "Remember the key.")
    before = await window_of(mesh.client, agent)
    request = provider.requests[-1].body

    await mesh.kill(room)
    await mesh.start(room)

    assert await window_of(mesh.client, agent) == before
    assert (await agent.memory()).blocks[0].value == "A human.\nThe key is under the mat."
    assert [hit.passage.text for hit in await agent.search_passages("key")] == ["The key is under the mat."]
    heard = await turn(agent, "Where is the key?")
    assert heard.said == "It is under the mat."
    messages = provider.requests[-1].body["messages"]
    assert json.dumps(messages[: len(request["messages"])]) == json.dumps(request["messages"])


@pytest.mark.parametrize("room", ROOMS)
async def test_while_the_model_is_asked(mesh: ProcessMesh, killed: Killed, room: str) -> None:
    """The third answer is on its way: two steps are committed, nothing of the third is."""
    running = killed.begin(gates=[killed.gate])
    await _until(lambda: len(killed.provider.requests) - killed.asked == 3)
    await _kill_and_start(mesh, room, killed.gate)
    again = 1 if room == "orchestrator" else 0
    if again:
        killed.provider.script = [Reply(text="Both are stored."), "Goodbye."]
    killed.gate.set()
    await killed.ends_well(running, asked_again=again)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(
    ("proxy", "method", "executed", "nth"),
    [
        ("archival", "InsertPassages", False, 0),
        ("archival", "InsertPassages", True, 1),
        ("blocks", "EditBlock", True, 0),
        ("recall", "CommitStep", False, 0),
        ("recall", "CommitStep", True, 1),
    ],
    ids=["journalled", "insert-done", "edit-done", "before-commit", "commit-done"],
)
async def test_in_the_middle_of_a_step(
    mesh: ProcessMesh, killed: Killed, room: str, proxy: str, method: str, executed: bool, nth: int
) -> None:
    """The call is held before the room, or done with its answer on the way; then the process dies."""
    if room == "tools":
        pytest.skip("tools takes no part in these steps; see the test of its own below")
    door = mesh.proxies[proxy]
    for _ in range(nth):
        door.inject(method, _nothing())
    hold = door.hold(method, executed=executed)
    running = killed.begin()
    async with asyncio.timeout(PATIENCE):
        await hold.reached.wait()
    await mesh.kill(room)
    hold.release.set()
    await mesh.start(room)
    await killed.ends_well(running)


async def _kill_and_start(mesh: ProcessMesh, room: str, _gate: asyncio.Event) -> None:
    await mesh.kill(room)
    await mesh.start(room)


def _nothing() -> Any:
    from engram_testkit.faults import Delay

    return Delay(0)


async def _until(condition: Callable[[], bool], poll: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await poll(0.005)
