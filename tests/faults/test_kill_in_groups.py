"""kill -9 of the orchestrator while a member of a group speaks: the round completes, and no member speaks twice."""

import asyncio
from typing import Any

import pytest
from mnemesh_client import Agent, text_of
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import assert_whole, window_of
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(300))]

LIMIT_SECONDS = scaled(90)
NAMES = ("Ada", "Bob", "Cleo")


def speaker(body: dict[str, Any]) -> str:
    system = str(body["messages"][0]["content"])
    return next(name for name in NAMES if f"I am {name}." in system)


@pytest.mark.full
async def test_round_is_completed_after_a_kill(mesh: ProcessMesh, provider: FakeOpenAI) -> None:
    agents: list[Agent] = [
        await mesh.client.agents.create(name=name, model="openai/fake-model", system=f"I am {name}.", blocks={})
        for name in NAMES
    ]
    group = await mesh.client.groups.create([agent.id for agent in agents], max_turns=4)
    gate, begun, asked = asyncio.Event(), asyncio.Event(), []

    def answer(body: dict[str, Any]) -> Reply:
        asked.append(speaker(body))
        if asked == ["Ada", "Bob"]:
            begun.set()
            return Reply(text="Never said.", gates=[gate])
        return Reply(text=f"{asked[-1]} speaks.")

    provider.script = answer
    events = []

    async def follow() -> None:
        async for event in mesh.client.runs.send("", "Hello", group_id=group.id):
            events.append(event)

    async with asyncio.timeout(LIMIT_SECONDS):
        following = asyncio.create_task(follow())
        await begun.wait()
        await mesh.kill("orchestrator")
        gate.set()
        await mesh.start("orchestrator")
        await following
    assert asked == ["Ada", "Bob", "Bob", "Cleo", "Ada"], "only the call that was interrupted is repeated"
    durable = [event for event in events if event.HasField("sequence")]
    assert [event.sequence for event in durable] == list(range(1, len(durable) + 1))
    ends = [event.member_turn_ended for event in durable if event.HasField("member_turn_ended")]
    assert [end.number for end in ends] == [1, 2, 3, 4]
    run = await mesh.client.runs.get(events[0].run_id)
    children = [child.agent_id async for child in mesh.client.runs.children(run.id)]
    assert children == [agents[index].id for index in (0, 1, 2, 0)]
    expected = {
        "Ada": ["Hello", "Ada speaks.", "Bob: Bob speaks.", "Cleo: Cleo speaks.", "Ada speaks."],
        "Bob": ["Hello", "Ada: Ada speaks.", "Bob speaks."],
        "Cleo": ["Hello", "Ada: Ada speaks.", "Bob: Bob speaks.", "Cleo speaks."],
    }
    for name, agent in zip(NAMES, agents, strict=True):
        window = await window_of(mesh.client, agent)
        assert_whole(window)
        assert [text_of(message.content) for message in window[-len(expected[name]) :]] == expected[name]
