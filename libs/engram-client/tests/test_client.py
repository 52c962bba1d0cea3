"""What a Python caller sees: agents, their memory, lists and errors."""

from __future__ import annotations

from typing import Any

import pytest
from engram.blocks.v1 import blocks_pb2
from engram_client import Engram, RunFailed
from engram_client.addresses import Addresses
from engram_client.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from engram_client.inputs import source_text


async def test_an_agent_is_made_with_its_blocks_and_answers(engram: Engram) -> None:
    agent = await engram.agents.create(
        "ada", model="engram/rehearsal", blocks={"human": "Likes tea.", "persona": "Kind."}, tools=["web_search"]
    )

    assert agent.id.startswith("agent-")
    assert [tool.name for tool in agent.proto.tools] == ["web_search"]
    assert {block.label: block.value for block in (await agent.memory()).blocks} == {
        "human": "Likes tea.",
        "persona": "Kind.",
    }
    assert await agent.ask("hello") == "You said: hello"


async def test_block_messages_keep_what_a_mapping_cannot_say(engram: Engram) -> None:
    block = blocks_pb2.Block(label="rules", value="Be brief.", read_only=True)
    agent = await engram.agents.create(model="engram/rehearsal", blocks=[block])

    assert [held.label for held in (await agent.memory()).blocks] == ["rules"]


async def test_the_events_of_a_turn_come_in_order_to_stop_and_usage(engram: Engram) -> None:
    agent = await engram.agents.create("ada", model="engram/rehearsal", blocks={"human": ""})

    kinds = [_kind(event) async for event in agent.send("remember Ada likes tea")]

    assert kinds == ["accepted", "tool_call", "tool_return", "assistant", "stop", "usage"]
    assert "Ada likes tea" in (await agent.memory()).blocks[0].value


async def test_a_failed_turn_is_an_event_to_send_and_an_error_to_ask(engram: Engram) -> None:
    agent = await engram.agents.create("ada", model="engram/rehearsal")

    assert "error" in [_kind(event) async for event in agent.send("refuse")]
    with pytest.raises(RunFailed) as failure:
        await agent.ask("refuse")
    assert failure.value.reason == "PROVIDER_AUTH"
    assert failure.value.metadata["provider"] == "openai"


async def test_the_same_request_id_is_the_same_agent(engram: Engram) -> None:
    first = await engram.agents.create("ada", model="engram/rehearsal", request_id="once")
    second = await engram.agents.create("ada", model="engram/rehearsal", request_id="once")

    assert first.id == second.id


async def test_a_list_goes_on_over_its_pages(engram: Engram) -> None:
    made = [(await engram.agents.create(f"a{n}", model="engram/rehearsal")).id for n in range(5)]

    assert [agent.id async for agent in engram.agents.list()] == made
    assert [agent.id async for agent in engram.agents.list(limit=3)] == made[:3]


async def test_an_agent_is_found_by_id_and_by_a_name_that_is_its_own(engram: Engram) -> None:
    ada = await engram.agents.create("ada", model="engram/rehearsal")
    await engram.agents.create("bob", model="engram/rehearsal")
    await engram.agents.create("bob", model="engram/rehearsal")

    assert (await engram.agents.find(ada.id)).name == "ada"
    assert (await engram.agents.find("ada")).id == ada.id
    with pytest.raises(NotFound):
        await engram.agents.find("nobody")
    with pytest.raises(InvalidArgument):
        await engram.agents.find("bob")


async def test_errors_of_the_server_come_typed(engram: Engram) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await engram.agents.create("no model")
    assert refused.value.field == "agent.model"
    with pytest.raises(InvalidArgument, match="letta_v9"):
        await engram.agents.create(model="engram/rehearsal", type="letta_v9")
    agent = await engram.agents.create(model="engram/rehearsal", blocks={"human": ""})
    with pytest.raises(AlreadyExists) as taken:
        await engram.blocks.create("human", agent_ids=[agent.id])
    assert taken.value.reason == "BLOCK_LABEL_TAKEN"


async def test_blocks_are_edited_shared_and_their_history_read(engram: Engram) -> None:
    ada = await engram.agents.create("ada", model="engram/rehearsal", blocks={"human": "Ada."})
    bob = await engram.agents.create("bob", model="engram/rehearsal")
    block = (await ada.memory()).blocks[0]

    await engram.blocks.attach(bob.id, block.id)
    await ada.append("human", "Likes tea.")
    await bob.replace("human", "tea", "coffee")
    await engram.blocks.update(block.id, description="The person.", limit=500)
    await engram.blocks.insert(ada.id, "human", 0, "About:")

    after = (await ada.memory()).blocks[0]
    assert (after.value, after.description, after.limit) == (
        "About:\nAda.\nLikes coffee.",
        "The person.",
        500,
    )
    assert (await bob.memory()).blocks[0].value == after.value
    assert [revision.revision async for revision in engram.blocks.revisions(block.id)] == [5, 4, 3, 2, 1]


async def test_a_cleared_field_is_absent_afterwards(engram: Engram) -> None:
    block = await engram.blocks.create("notes", description="Temporary.")

    await engram.blocks.update(block.id, description=None)

    assert (await engram.blocks.get(block.id)).description != "Temporary."


async def test_nobody_there_is_unavailable(unused_tcp_port: int) -> None:
    async with Engram(f"127.0.0.1:{unused_tcp_port}", patience=0.2) as engram:
        with pytest.raises(Unavailable):
            await engram.agents.get("agent-00000000-0000-4000-8000-000000000000")
        with pytest.raises(Unavailable):
            async for _ in engram.runs.send("agent-00000000-0000-4000-8000-000000000000", "hello"):
                pass


def test_addresses_come_from_arguments_then_the_environment_then_the_default_ports() -> None:
    env = {"ENGRAM_TARGET": "mesh:7000", "ENGRAM_RECALL_TARGET": "recall:7002"}

    assert Addresses.resolve(env={}).orchestrator == "localhost:50050"
    assert Addresses.resolve("example.org", env={}).items()[:2] == (
        ("orchestrator", "example.org:50050"),
        ("blocks", "example.org:50051"),
    )
    resolved = Addresses.resolve(blocks="b:1", env=env)
    assert (resolved.orchestrator, resolved.blocks, resolved.recall, resolved.tools) == (
        "mesh:7000",
        "b:1",
        "recall:7002",
        "mesh:50054",
    )


def test_a_function_is_sent_as_its_source() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert source_text(add).startswith("def add(a: int, b: int)")
    assert source_text("def f(): ...") == "def f(): ..."
    with pytest.raises(InvalidArgument):
        source_text(len)


def _kind(event: Any) -> str:
    kind = event.WhichOneof("event")
    return event.message.WhichOneof("message") if kind == "message" else kind
