"""A conversation that uses every kind of memory, for both loops, with and without token streaming."""

import json

import pytest
from mnemesh_client import Agent
from mnemesh_testkit.mesh.in_process import REHEARSAL, Mesh
from mnemesh_testkit.mesh.turns import assert_whole, stored, turn, window_of

BOTH_LOOPS = pytest.mark.parametrize("kind", ["letta_v1", "memgpt_v2"])
BOTH_WAYS = pytest.mark.parametrize("stream_tokens", [False, True], ids=["whole", "tokens"])


async def create(mesh: Mesh, kind: str) -> Agent:
    return await mesh.client.agents.create(
        type=kind, model=REHEARSAL, blocks={"human": "The human has not said anything yet.", "persona": "Kind."}
    )


@BOTH_LOOPS
@BOTH_WAYS
async def test_every_kind_of_memory_is_used(mesh: Mesh, kind: str, stream_tokens: bool) -> None:
    agent = await create(mesh, kind)

    async def ask(text: str) -> str:
        result = await turn(agent, text, stream_tokens=stream_tokens)
        assert result.status == "COMPLETED", result.error
        assert result.sequences == list(range(1, len(result.sequences) + 1))
        if stream_tokens:
            assert result.streamed == result.said
        return result.said

    assert "Ada" in await ask("My name is Ada.")
    human = next(block for block in (await agent.memory()).blocks if block.label == "human")
    assert "Ada" in human.value
    assert "Your name is Ada" in await ask("What is my name?")
    assert "key is under the mat" in await ask("Remember that the key is under the mat.")
    assert [passage.text async for passage in agent.passages()] == ["the key is under the mat."]
    assert "under the mat" in await ask("What do you know about the key?")
    assert "under the mat" in await ask("What did I say about the key?")
    several = await ask("My name is Grace. Remember that the cat is called Tom. What do you know about the cat?")
    assert "Grace" in several
    assert "Tom" in several
    assert_whole(await window_of(mesh.client, agent))
    assert [m.id for m in await stored(agent)] == [m.id for m in await window_of(mesh.client, agent)]


@BOTH_LOOPS
@pytest.mark.mesh(in_memory=False)
async def test_conversation_continues_after_a_restart_of_every_service(mesh: Mesh, kind: str) -> None:
    agent = await create(mesh, kind)
    await turn(agent, "My name is Ada. Remember that the key is under the mat.")
    before = [message.id for message in await window_of(mesh.client, agent)]
    for service in ("blocks", "recall", "archival", "tools", "orchestrator"):
        await mesh.restart(service)
    assert [message.id for message in await window_of(mesh.client, agent)] == before
    result = await turn(agent, "What is my name? What do you know about the key? What did I say about the key?")
    assert "Ada" in result.said
    assert result.said.count("under the mat") >= 2


async def test_messages_of_user_and_agent_are_found_in_recall(mesh: Mesh) -> None:
    agent = await create(mesh, "memgpt_v2")
    await turn(agent, "The orchid needs water on Tuesdays.")
    hits = await agent.search("orchid")
    assert hits[0].text == "The orchid needs water on Tuesdays."
    said = await agent.search("not a language model", roles=["assistant"])
    assert said, "what the agent sent by send_message is not found"


async def test_run_and_its_steps_are_recorded(mesh: Mesh) -> None:
    agent = await create(mesh, "letta_v1")
    result = await turn(agent, "Remember that the key is under the mat.")
    run = await mesh.client.runs.get(result.run_id)
    steps = [step async for step in mesh.client.runs.steps(run.id)]
    assert run.agent_id == agent.id
    assert run.step_count == len(steps) == 2
    assert [step.number for step in steps] == [1, 2]
    assert run.last_sequence == result.sequences[-1]
    call = result.calls[0]
    assert json.loads(call.arguments)["content"] == "the key is under the mat."
