"""kill -9 during a compaction: the old window or the new one, one summary, and a complete turn."""

import asyncio
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply, Usage
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import Turn, assert_whole, stored, turn, window_of
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(300)), pytest.mark.full]

LIMIT_SECONDS = scaled(90)
WORDS = "They spoke at length about trains and timetables. " * 12
SUMMARY = "They spoke about trains."


def is_summary(body: dict[str, Any]) -> bool:
    """Returns whether a request asks for a summary."""
    return "replace the older part of a conversation" in str(body["messages"][0])


async def long_talk(mesh: ProcessMesh, provider: FakeOpenAI) -> Agent:
    """An agent whose next turn is counted to be above the threshold."""
    settings = agents_pb2.ModelSettings(context_window=8_000)
    agent = await mesh.client.agents.create(model="openai/fake-model", settings=settings, blocks={"human": ""})
    provider.script = lambda body: "I see."
    for number in range(6):
        await turn(agent, f"{number}. {WORDS}")
    return agent


def full(gate: asyncio.Event | None = None) -> Any:
    """A model that counts 7,500 tokens, and whose summary waits for a gate."""

    def answer(body: dict[str, Any]) -> Reply:
        if is_summary(body):
            return Reply(text=SUMMARY, gates=[gate] if gate is not None else [])
        return Reply(text="That is all.", usage=Usage(input=7_500, output=3))

    return answer


def begin(agent: Agent) -> asyncio.Task[Turn]:
    config = runs_pb2.RunConfig(include_compaction_events=True)
    return asyncio.create_task(turn(agent, "And?", config=config))


async def ends_well(mesh: ProcessMesh, agent: Agent, running: asyncio.Task[Turn]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        received = await running
    assert (received.status, received.said) == ("COMPLETED", "That is all."), received.error
    assert received.sequences == list(range(1, len(received.sequences) + 1))
    kinds = [event.WhichOneof("event") for event in received.events]
    assert kinds.count("compaction") == 1
    window = await window_of(mesh.client, agent)
    assert_whole(window)
    assert text_of(window[0].content).endswith(SUMMARY)
    rows = [row for row in await stored(agent) if row.role == message_pb2.ROLE_SUMMARY]
    assert [row.id for row in rows] == [window[0].id]


async def test_kill_during_the_summary_call(mesh: ProcessMesh, provider: FakeOpenAI) -> None:
    agent = await long_talk(mesh, provider)
    before = await window_of(mesh.client, agent)
    gate = asyncio.Event()
    provider.script = full(gate)
    running = begin(agent)
    async with asyncio.timeout(LIMIT_SECONDS):
        while not any(is_summary(request.body) for request in provider.requests[-1:]):
            await asyncio.sleep(0.05)
    await mesh.kill("orchestrator")
    window = await window_of(mesh.client, agent)
    assert window[: len(before)] == before
    provider.script = full()
    gate.set()
    await mesh.start("orchestrator")
    await ends_well(mesh, agent, running)


@pytest.mark.parametrize(
    ("service", "executed"),
    [("orchestrator", True), ("orchestrator", False), ("recall", False), ("recall", True)],
)
async def test_kill_before_or_after_the_window_is_replaced(
    mesh: ProcessMesh, provider: FakeOpenAI, service: str, executed: bool
) -> None:
    agent = await long_talk(mesh, provider)
    requests = sum(is_summary(request.body) for request in provider.requests)
    provider.script = full()
    hold = mesh.proxies["recall"].hold("ReplaceContext", executed=executed)
    running = begin(agent)
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
    await mesh.kill(service)
    hold.release.set()
    await mesh.start(service)
    await ends_well(mesh, agent, running)
    summaries = sum(is_summary(request.body) for request in provider.requests) - requests
    assert summaries == 1, "what is journalled is not asked for again"
