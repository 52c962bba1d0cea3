"""kill -9 before or after the commit of an episodic compaction: each memory once, and a complete turn."""

import asyncio
import json
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.recall.v1 import episodes_pb2, episodes_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_testkit.fakes.fake_summarizer import extract_memories
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply, Usage
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import assert_whole, stored, turn, window_of
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(300)), pytest.mark.full]

LIMIT_SECONDS = scaled(90)


def asks_for_memories(body: dict[str, Any]) -> bool:
    """Returns whether a request asks for episodes and facts."""
    return "keep the long-term memory" in str(body["messages"][0])


def answer(body: dict[str, Any]) -> Reply:
    """Draws memories, and counts 7,500 tokens in every turn."""
    if asks_for_memories(body):
        return Reply(text=json.dumps(extract_memories(str(body["messages"][-1]["content"]))))
    return Reply(text="That is all.", usage=Usage(input=7_500, output=3))


async def knowing(mesh: ProcessMesh, provider: FakeOpenAI) -> Agent:
    """An agent with a stored fact, a message that contradicts it, and a window that the next turn compacts."""
    settings = agents_pb2.ModelSettings(context_window=8_000)
    agent = await mesh.client.agents.create(model="openai/fake-model", settings=settings, blocks={"human": ""})
    agent = await agent.update(
        compaction_settings=agents_pb2.CompactionSettings(mode=agents_pb2.COMPACTION_MODE_EPISODIC)
    )
    provider.script = lambda body: answer(body) if asks_for_memories(body) else "I see."
    for said in ("Remember: the boat is red.", *("Well.",) * 4):
        await turn(agent, said)
    await agent.compact()
    for said in ("Remember: the boat is blue.", *("Well.",) * 4):
        await turn(agent, said)
    provider.script = answer
    return agent


@pytest.mark.parametrize(
    ("service", "executed"),
    [("orchestrator", True), ("orchestrator", False), ("recall", False), ("recall", True)],
)
async def test_kill_before_or_after_memories_are_committed(
    mesh: ProcessMesh, provider: FakeOpenAI, service: str, executed: bool
) -> None:
    agent = await knowing(mesh, provider)
    requests = sum(asks_for_memories(request.body) for request in provider.requests)
    hold = mesh.proxies["recall"].hold("ReplaceContext", executed=executed)
    config = runs_pb2.RunConfig(include_compaction_events=True)
    running = asyncio.create_task(turn(agent, "And?", config=config))
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
    await mesh.kill(service)
    hold.release.set()
    await mesh.start(service)
    async with asyncio.timeout(LIMIT_SECONDS):
        received = await running
    assert (received.status, received.said) == ("COMPLETED", "That is all."), received.error
    window = await window_of(mesh.client, agent)
    assert_whole(window)
    assert "- the boat is blue." in text_of(window[0].content)
    assert "red" not in text_of(window[0].content)
    summaries = [row for row in await stored(agent) if row.role == message_pb2.ROLE_SUMMARY]
    assert len(summaries) == 2
    scope = [episodes_pb2.MemoryScope(agent_id=agent.id)]
    episodes = mesh.stubs["mnemesh.recall.v1.EpisodeService"]
    kept = await episodes.ListEpisodes(
        episodes_service_pb2.ListEpisodesRequest(filter=episodes_service_pb2.EpisodeFilter(scopes=scope))
    )
    assert [list(episode.turn_ids) for episode in kept.episodes] == [
        ["turn_0001"],
        [f"turn_{number:04d}" for number in range(2, 7)],
    ]
    known = await episodes.ListFacts(
        episodes_service_pb2.ListFactsRequest(
            filter=episodes_service_pb2.FactFilter(scopes=scope, include_invalid=True)
        )
    )
    assert [(fact.text, fact.HasField("invalid_time")) for fact in known.facts] == [
        ("the boat is red.", True),
        ("the boat is blue.", False),
    ]
    assert sum(asks_for_memories(request.body) for request in provider.requests) - requests == 1
