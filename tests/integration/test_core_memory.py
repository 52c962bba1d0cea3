"""Core memory inside of turns: shared blocks, and edits that the blocks service refuses."""

import asyncio
from typing import Any

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import texts, tool_texts, turn

MODEL = "openai/fake-model"


async def create(mesh: Mesh, *blocks: blocks_pb2.Block, **options: Any) -> Agent:
    return await mesh.client.agents.create(model=MODEL, blocks=blocks, **options)


async def test_edit_of_a_shared_block_is_visible_to_another_agent(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    shared = await mesh.client.blocks.create("project", "Nothing is known yet.")
    writer = await create(mesh, block_ids=[shared.id])
    reader = await create(mesh, block_ids=[shared.id])
    fake_openai.script = [
        "Hello.",
        Reply(
            tool_calls=[
                ("memory_replace", {"label": "project", "old_str": "Nothing is known yet.", "new_str": "Ship Friday."})
            ]
        ),
        "Noted.",
        "I see it.",
    ]
    await turn(reader, "Hello")
    result = await turn(writer, "We ship on Friday.")
    assert result.returns[0].status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
    await turn(reader, "What is the plan?")

    first, _, after_the_edit, last = (texts(request.body)[0] for request in fake_openai.requests)
    assert "Nothing is known yet." in first
    assert "Ship Friday." in after_the_edit, "the writer does not see its own edit"
    assert "Ship Friday." in last
    assert "Nothing is known yet." not in last
    block = await mesh.client.blocks.get(shared.id)
    assert block.value == "Ship Friday."


REFUSED: list[tuple[tuple[str, dict[str, Any]], str]] = [
    (("memory_insert", {"label": "notes", "new_str": "x" * 100}), "Exceeds 60 character limit (requested"),
    (
        ("memory_replace", {"label": "notes", "old_str": "tea", "new_str": "coffee"}),
        "Multiple occurrences of old_str `tea` in lines [1, 3]",
    ),
    (("memory_replace", {"label": "notes", "old_str": "1→tea first", "new_str": "x"}), "line number prefix"),
    (("memory_insert", {"label": "notes", "new_str": "x\n 2→milk"}), "line number prefix"),
    (("memory_insert", {"label": "notes", "new_str": "x", "insert_line": 17}), "Invalid `insert_line` parameter"),
    (("memory_replace", {"label": "notes", "old_str": "nowhere", "new_str": "x"}), "did not appear verbatim"),
    (("memory_replace", {"label": "fixed", "old_str": "Law", "new_str": "x"}), "read-only"),
    (("memory_insert", {"label": "fixed", "new_str": "x"}), "read-only"),
    (("memory_replace", {"label": "missing", "old_str": "a", "new_str": "b"}), "does not exist"),
]


async def test_refused_edit_is_an_error_return_and_changes_nothing(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    for call, told in REFUSED:
        agent = await create(
            mesh,
            blocks_pb2.Block(label="notes", value="tea first\nmilk\ntea last", limit=60),
            blocks_pb2.Block(label="fixed", value="Law.", read_only=True),
        )
        before = {block.label: block.value for block in (await agent.memory()).blocks}
        fake_openai.script = [Reply(tool_calls=[call]), "I could not."]

        result = await turn(agent, "Change it.")

        assert result.status == "COMPLETED"
        assert result.returns[0].status == message_pb2.TOOL_RETURN_STATUS_ERROR, call
        assert told.lower() in tool_texts(fake_openai.requests[-1].body)[0].lower()
        assert {block.label: block.value for block in (await agent.memory()).blocks} == before


async def test_concurrent_edit_during_a_model_call_is_shown_and_not_overwritten(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    shared = await mesh.client.blocks.create("project", "Nothing is known yet.")
    agent = await create(mesh, block_ids=[shared.id])
    other = await create(mesh, block_ids=[shared.id])
    theirs = "Ship on Friday. " * 300

    async def answer(body: dict[str, Any]) -> Reply | str:
        answered = len(tool_texts(body))
        if answered == 0:
            await other.append("project", theirs)
        if answered < 2:
            arguments = {"label": "project", "new_str": f"Draft {answered}", "insert_line": 1}
            return Reply(tool_calls=[("memory_insert", arguments)])
        return "Done."

    fake_openai.script = answer
    result = await turn(agent, "Write it down.")
    assert [item.status for item in result.returns] == [
        message_pb2.TOOL_RETURN_STATUS_ERROR,
        message_pb2.TOOL_RETURN_STATUS_SUCCESS,
    ]
    assert theirs in tool_texts(fake_openai.requests[1].body)[0]
    assert theirs in texts(fake_openai.requests[1].body)[0], "the next step shows the block as it is"
    assert (await mesh.client.blocks.get(shared.id)).value == f"Nothing is known yet.\nDraft 1\n{theirs}"


async def test_owner_may_edit_a_read_only_block(mesh: Mesh) -> None:
    agent = await create(mesh, blocks_pb2.Block(label="fixed", value="Law.", read_only=True))
    await agent.append("fixed", "Amendment.")
    assert (await agent.memory()).blocks[0].value == "Law.\nAmendment."


async def test_shared_blocks_survive_the_deletion_of_an_agent(mesh: Mesh) -> None:
    shared = await mesh.client.blocks.create("project", "Ours.")
    agent = await create(mesh, blocks_pb2.Block(label="own", value="Mine."), block_ids=[shared.id])
    other = await create(mesh, block_ids=[shared.id])
    await agent.delete()
    assert [block.value for block in (await other.memory()).blocks] == ["Ours."]


async def test_concurrent_edits_of_a_shared_block_are_all_kept(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    shared = await mesh.client.blocks.create("project", "Begin")
    agents = [await create(mesh, block_ids=[shared.id]) for _ in range(6)]

    def answer(body: dict[str, Any]) -> Reply | str:
        if body["messages"][-1]["role"] == "tool":
            return "Done."
        line = texts(body)[-1].partition("Write: ")[2].partition(".")[0]
        return Reply(tool_calls=[("memory_insert", {"label": "project", "new_str": line})])

    fake_openai.script = answer
    result = await asyncio.gather(*(turn(agent, f"Write: line {n}.") for n, agent in enumerate(agents)))
    assert {item.status for item in result} == {"COMPLETED"}
    lines = (await mesh.client.blocks.get(shared.id)).value.splitlines()
    assert lines[0] == "Begin"
    assert sorted(lines[1:]) == [f"line {n}" for n in range(6)]
