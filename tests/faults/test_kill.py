"""kill -9 of each process, between turns and at known points of a turn: nothing is lost or duplicated."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_kit.ids import new_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.faulty_proxy import Delay
from mnemesh_testkit.mesh.processes import ProcessMesh, alive, descendants
from mnemesh_testkit.mesh.turns import Turn, assert_whole, collect, stored, turn, window_of
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(300))]

MODEL = "openai/fake-model"
LIMIT_SECONDS = scaled(90)

DOORS = {"InsertPassages": "archival", "EditBlock": "blocks", "CommitStep": "recall"}

SLOW = '''
def slow() -> str:
    """Takes very long."""
    import time
    time.sleep(170)
    return "done"
'''


async def create(mesh: ProcessMesh, **options: Any) -> Agent:
    return await mesh.client.agents.create(model=MODEL, blocks={"human": "A human."}, **options)


def both(fact: str) -> Reply:
    """One answer with effects in two services."""
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
        async with asyncio.timeout(LIMIT_SECONDS):
            received = await running
        assert (received.status, received.said.splitlines()[-1]) == ("COMPLETED", "Both are stored."), received.error
        assert received.sequences == list(range(1, len(received.sequences) + 1)), (
            "the client missed or repeated an event"
        )
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
        """The next request begins with the messages of the last one, byte for byte."""
        before = self.provider.requests[-1].body
        result = await turn(self.agent, "Goodbye.")
        assert result.said == "Goodbye."
        after = self.provider.requests[-1].body
        length = len(before["messages"])
        assert json.dumps(after["messages"][:length]) == json.dumps(before["messages"])
        assert json.dumps(after["tools"]) == json.dumps(before["tools"])


@pytest_asyncio.fixture(loop_scope="module")
async def killed(mesh: ProcessMesh, provider: FakeOpenAI) -> Killed:
    return Killed(mesh, provider, await create(mesh))


@pytest.mark.parametrize("service", sampled(STORE_NAMES, 3))
async def test_kill_between_turns_loses_nothing(mesh: ProcessMesh, provider: FakeOpenAI, service: str) -> None:
    agent = await create(mesh)
    provider.script = [both("The key is under the mat."), "Stored.", "It is under the mat."]
    await turn(agent, "Remember the key.")
    before = await window_of(mesh.client, agent)
    request = provider.requests[-1].body

    await mesh.kill(service)
    await mesh.start(service)

    assert await window_of(mesh.client, agent) == before
    assert (await agent.memory()).blocks[0].value == "A human.\nThe key is under the mat."
    assert [hit.passage.text for hit in await agent.search_passages("key")] == ["The key is under the mat."]
    result = await turn(agent, "Where is the key?")
    assert result.said == "It is under the mat."
    messages = provider.requests[-1].body["messages"]
    assert json.dumps(messages[: len(request["messages"])]) == json.dumps(request["messages"])


@pytest.mark.parametrize("service", sampled(["orchestrator", "recall", "blocks", "archival"], 2))
async def test_kill_during_a_model_call_resumes_the_turn(mesh: ProcessMesh, killed: Killed, service: str) -> None:
    """During the third answer: two steps are committed, and nothing of the third is."""
    running = killed.begin(gates=[killed.gate])
    await _until(lambda: len(killed.provider.requests) - killed.asked == 3)
    await mesh.kill(service)
    if service == "orchestrator":
        # this answer was never journalled: its question is the only one that is asked again
        killed.provider.script = [Reply(text="Both are stored."), "Goodbye."]
    await mesh.start(service)
    killed.gate.set()
    await killed.ends_well(running, asked_again=service == "orchestrator")


@pytest.mark.parametrize(
    ("service", "method", "executed", "nth"),
    sampled(
        [
            ("orchestrator", "InsertPassages", False, 0),
            ("orchestrator", "InsertPassages", True, 1),
            ("orchestrator", "EditBlock", True, 0),
            ("orchestrator", "CommitStep", False, 0),
            ("orchestrator", "CommitStep", True, 1),
            ("orchestrator", "CommitStep", True, 2),
            ("archival", "InsertPassages", False, 1),
            ("archival", "InsertPassages", True, 0),
            ("blocks", "EditBlock", False, 0),
            ("blocks", "EditBlock", True, 1),
            ("recall", "CommitStep", False, 1),
            ("recall", "CommitStep", True, 0),
            ("recall", "InsertPassages", True, 0),
        ],
        4,
    ),
)
async def test_kill_during_a_step_resumes_the_turn(
    mesh: ProcessMesh, killed: Killed, service: str, method: str, executed: bool, nth: int
) -> None:
    """The nth call is held before it reaches the service, or after it was executed; then the process is killed."""
    door = mesh.proxies[DOORS[method]]
    door.inject(method, Delay(0), times=nth)
    hold = door.hold(method, executed=executed)
    running = killed.begin()
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
    await mesh.kill(service)
    hold.release.set()
    await mesh.start(service)
    await killed.ends_well(running)


@pytest.mark.parametrize(
    ("method", "executed"), sampled([("InsertPassages", True), ("CommitStep", False), ("CommitStep", True)], 3)
)
async def test_heartbeat_loop_resumes_from_its_journal(
    mesh: ProcessMesh, provider: FakeOpenAI, method: str, executed: bool
) -> None:
    agent = await create(mesh, type="memgpt_v2")
    fact = f"A fact {new_id('x')[-6:]}."
    provider.script = [
        Reply(
            tool_calls=[Call("archival_memory_insert", {"content": fact, "request_heartbeat": True, "thinking": "a"})]
        ),
        Reply(tool_calls=[Call("send_message", {"message": "Stored.", "thinking": "b"})]),
    ]
    count = len(provider.requests)
    before = len(await window_of(mesh.client, agent))
    hold = mesh.proxies[DOORS[method]].hold(method, executed=executed)
    running = asyncio.create_task(turn(agent, "Store a fact."))
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
    await mesh.kill("orchestrator")
    hold.release.set()
    await mesh.start("orchestrator")
    async with asyncio.timeout(LIMIT_SECONDS):
        received = await running
    assert (received.status, received.said) == ("COMPLETED", "Stored."), received.error
    assert len(provider.requests) - count == 2
    assert [passage.text async for passage in agent.passages()] == [fact]
    window = (await window_of(mesh.client, agent))[before:]
    assert_whole(window)
    roles = [message_pb2.Role.Name(row.role).removeprefix("ROLE_") for row in window]
    assert roles == ["USER", "ASSISTANT", "TOOL", "USER", "ASSISTANT", "TOOL"], "the heartbeat is missing or doubled"


@pytest.mark.parametrize("end", sampled(["kill", "stop"], 2))
async def test_answer_in_one_response_survives_the_orchestrator(
    mesh: ProcessMesh, provider: FakeOpenAI, end: str
) -> None:
    """The client waits for one response of the whole turn, and has received nothing when the orchestrator ends."""
    agent = await create(mesh)
    provider.script = ["I am here.", "I am here."]  # an answer without calls is not journalled before its commit
    before = len(await window_of(mesh.client, agent))
    hold = mesh.proxies["recall"].hold("CommitStep", executed=True)
    asking = asyncio.create_task(agent.ask("Are you there?"))
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
    await (mesh.kill if end == "kill" else mesh.stop)("orchestrator")
    hold.release.set()
    await mesh.start("orchestrator")
    async with asyncio.timeout(LIMIT_SECONDS):
        assert await asking == "I am here."
    window = (await window_of(mesh.client, agent))[before:]
    assert_whole(window)
    assert [message_pb2.Role.Name(row.role) for row in window] == ["ROLE_USER", "ROLE_ASSISTANT"]


@pytest.mark.parametrize("service", ["orchestrator", "tools"])
async def test_interrupted_custom_tool_does_not_run_again(
    mesh: ProcessMesh, provider: FakeOpenAI, service: str
) -> None:
    agent = await create(mesh, tool_sources=[SLOW])
    provider.script = [Reply(tool_calls=[Call("slow")]), "I cannot tell."]
    door = mesh.proxies["tools"]
    before = door.calls["ExecuteTool"]
    running = asyncio.create_task(turn(agent, "Do it slowly."))
    tools = mesh.pid("tools")
    await _until(lambda: len(descendants(tools)) >= 2)
    started = descendants(tools)
    await mesh.kill(service)
    await mesh.start(service)
    async with asyncio.timeout(LIMIT_SECONDS):
        received = await running
    assert (received.status, received.said) == ("COMPLETED", "I cannot tell."), received.error
    assert received.returns[0].status == message_pb2.TOOL_RETURN_STATUS_ERROR
    assert "outcome is unknown" in received.returns[0].content[0].text.text
    assert door.calls["ExecuteTool"] - before == 1
    await _until(lambda: not alive(started))
    assert_whole(await window_of(mesh.client, agent))


async def test_sigterm_during_a_turn_loses_nothing(mesh: ProcessMesh, killed: Killed) -> None:
    """SIGTERM, as a rolling update sends it, while a tool's answer is on its way."""
    hold = mesh.proxies["blocks"].hold("EditBlock", executed=True)
    running = killed.begin()
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
    await mesh.stop("orchestrator")
    hold.release.set()
    await mesh.start("orchestrator")
    await killed.ends_well(running)


async def test_kill_of_all_processes_during_a_commit(mesh: ProcessMesh, killed: Killed) -> None:
    """As a failure of the machine does."""
    hold = mesh.proxies["recall"].hold("CommitStep", executed=True)
    running = killed.begin()
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
    await asyncio.gather(*(mesh.kill(service) for service in STORE_NAMES))
    hold.release.set()
    await asyncio.gather(*(mesh.start(service) for service in STORE_NAMES))
    await killed.ends_well(running)


async def test_accepted_input_is_answered_without_a_client(mesh: ProcessMesh, provider: FakeOpenAI) -> None:
    agent = await create(mesh)
    gate = asyncio.Event()
    provider.script = lambda body: Reply(text="Here it is.", gates=[gate])
    count = len(provider.requests)
    first = await mesh.client.runs.start(agent.id, "One.")
    second = await mesh.client.runs.start(agent.id, "Two.")
    await _until(lambda: len(provider.requests) > count)
    await mesh.kill("orchestrator")
    gate.set()
    await mesh.start("orchestrator")
    for run in (first, second):
        async with asyncio.timeout(LIMIT_SECONDS):
            assert (await collect(mesh.client.runs.stream(run.id))).said == "Here it is."
    roles = [row.role for row in await stored(agent)]
    assert roles == [message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT] * 2


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)
