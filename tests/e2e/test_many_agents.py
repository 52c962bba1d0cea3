"""Many agents at the same time: every turn completes, and none fails."""

import asyncio

import pytest
from mnemesh_client import Agent
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import Turn, assert_whole, texts, turn, window_of
from mnemesh_testkit.timeouts import scaled

AGENTS = 200


@pytest.mark.full
@pytest.mark.timeout(scaled(600))
async def test_concurrent_agents_complete_their_turns(process_mesh: ProcessMesh, fake_openai: FakeOpenAI) -> None:
    """Each agent stores its own fact with a tool and then states it."""
    client = process_mesh.client

    def answer(body: dict[str, object]) -> Reply:
        if body["messages"][-1]["role"] == "tool":  # type: ignore[index]
            return Reply(text="Stored.")
        return Reply(tool_calls=[Call("memory_insert", {"label": "human", "new_str": texts(body)[-1][-200:]})])

    fake_openai.script = answer
    gate = asyncio.Semaphore(8)

    async def make() -> Agent:
        async with gate:
            return await client.agents.create(model="openai/fake-model", blocks={"human": ""})

    agents = await asyncio.gather(*(make() for _ in range(AGENTS)))

    async def send(number: int) -> Turn:
        return await turn(agents[number], f"My number is {number:03}.")

    received = await asyncio.gather(*map(send, range(AGENTS)))
    assert [item.status for item in received] == ["COMPLETED"] * AGENTS, [item.error for item in received if item.error]
    assert {item.said for item in received} == {"Stored."}
    assert all(item.sequences == list(range(1, 7)) for item in received)
    for number in range(0, AGENTS, 10):
        assert f"My number is {number:03}." in (await agents[number].memory()).blocks[0].value
        window = await window_of(client, agents[number])
        assert len(window) == 4
        assert_whole(window)
