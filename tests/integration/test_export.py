"""An agent is exported to files and imported into another mesh or organization with all of its data."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import agents_pb2, conversations_pb2
from mnemesh.archival.v1 import archives_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.commands import export_import
from mnemesh_client import Agent, text_of
from mnemesh_client.errors import InvalidArgument
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn, window_of

from .connections import Opened

TOOL = '''
def dig(depth: int) -> str:
    """Digs a hole.

    Args:
        depth: in metres.
    """
    raise ValueError("a rock")
'''
SEED_LINES = """\
{"id":"rt_001","ts":1738100000.12,"turn_id":"turn_0001","seq":1,"trace_type":"user","content":"Please refactor the parser.","source_event":"LLMUserMessageReadyEvent","media":{"images":[],"audio":[],"video":[]},"tags":["processed"]}
{"id":"rt_002","ts":1738100002.45,"turn_id":"turn_0001","seq":2,"trace_type":"tool_call","content":"","source_event":"PendingToolInvocationEvent","tool_name":"list_directory","tool_args":{"path":"src"}}
{"id":"rt_003","ts":1738100003.11,"turn_id":"turn_0001","seq":3,"trace_type":"tool_result","content":"","source_event":"ToolResultEvent","tool_name":"list_directory","tool_result":["app.py","parser.py"]}
{"id":"rt_004","ts":1738100005.90,"turn_id":"turn_0001","seq":4,"trace_type":"assistant","content":"I will refactor the parser next.","source_event":"LLMCompleteResponseReceivedEvent","tags":["final"]}
"""  # noqa: E501  (the lines of a file)


async def export(mesh: Mesh, agent: Agent, directory: Path) -> None:
    opened: Any = Opened(mesh.client)
    await export_import._export(opened, agent.id, directory, None, traces_only=False)


async def import_(mesh: Mesh, directory: Path, key: str | None = None) -> None:
    opened: Any = Opened(mesh.client)
    await export_import._import(opened, directory, key, None, window=True)


@pytest.fixture
async def mesh(tmp_path: Path, fake_openai: FakeOpenAI) -> AsyncIterator[Mesh]:
    (tmp_path / "mesh").mkdir()
    async with Mesh(tmp_path / "mesh", openai_base_url=fake_openai.base_url, in_memory=True) as mesh:
        yield mesh


async def equip(mesh: Mesh, fake_openai: FakeOpenAI) -> Agent:
    """Returns an agent with something in every memory."""
    client = mesh.client
    tool = await client.tools.create(TOOL)
    human = blocks_pb2.Block(
        label="human", value="Name: Ada", limit=300, read_only=True, description="The user", metadata='{"a":1}'
    )
    agent = await client.agents.create(
        "ada", model="openai/fake-model", type="memgpt_v2", blocks=[human], tools=[tool.id],
        metadata={"kind": "test"}, tags=["old"], system="You are Ada. {CORE_MEMORY}",
    )  # fmt: skip
    episodic = agents_pb2.CompactionSettings(mode=agents_pb2.COMPACTION_MODE_EPISODIC, memory_scope="team")
    agent = await agent.update(compaction_settings=episodic)
    received = Timestamp()
    received.FromDatetime(datetime(2025, 3, 1, tzinfo=UTC))
    passages = [archives_pb2.Passage(text=f"Passage {n}", tags=["t", str(n)], create_time=received) for n in range(3)]
    await client.passages.insert_many(passages, agent_id=agent.id)
    await client.archives.create("library", agent_ids=[agent.id])
    fake_openai.script = [
        Reply(tool_calls=[("dig", {"depth": 3})]), Reply(tool_calls=[("send_message", {"message": "A rock."})])
    ]  # fmt: skip
    assert (await turn(agent, "Dig.")).said == "A rock."
    side = await client.conversations.create(
        conversations_pb2.Conversation(agent_id=agent.id, summary="Aside", isolated_block_labels=["human"])
    )
    fake_openai.script = [Reply(tool_calls=[("send_message", {"message": "Hm."})])]
    async for _ in agent.send("Aside, please.", conversation_id=side.id):
        pass
    scope = episodes_pb2.MemoryScope(name="team")
    source = episodes_pb2.MemorySource(agent_id=agent.id)
    fact = episodes_pb2.FactOperation(add=episodes_pb2.Fact(text="There is a rock", source=source))
    await client.episodes.commit(scope, "They dug.", turn_ids=["turn_0002"], source=source, operations=[fact])
    await client.facts.create("Ada digs", agent_id=agent.id)
    return agent


def outline(item: Any) -> tuple[str, ...]:
    """Returns a tool call or a return without what a trace does not have."""
    value = json.dumps(json.loads(item.arguments)) if hasattr(item, "arguments") else text_of(item.content)
    return (item.name, value)


def is_event(message: Any) -> bool:
    """Returns whether a message is a heartbeat or a login, which are no traces."""
    return text_of(message.content).startswith("{")


async def contents(mesh: Mesh, agent: Agent) -> dict[str, Any]:
    """Returns what an agent has, without ids."""
    client = mesh.client
    blocks = [
        (b.label, b.value, b.limit, b.read_only, b.description, b.metadata) for b in (await agent.memory()).blocks
    ]
    archives = [archive async for archive in client.archives.list(agent_id=agent.id)]
    conversations = [item async for item in client.conversations.list(agent_id=agent.id)]
    windows = [await client.messages.window(item.id) for item in conversations]
    facts = [record.fact async for record in client.traces.export(agent.id, kinds=("fact",), scope_names=("team",))]
    return {
        "settings": (agent.name, agent.model, agent.proto.type, agent.proto.system, agent.proto.metadata),
        "scope": agent.proto.compaction_settings.memory_scope,
        "tools": sorted(tool.name for tool in agent.proto.tools),
        "rules": len(agent.proto.tool_rules),
        "blocks": blocks,
        "archives": sorted((len(archive.name) > 0, archive.passage_count) for archive in archives),
        "passages": sorted(
            [
                (p.text, tuple(p.tags), p.create_time.seconds)
                for archive in archives
                async for p in client.passages.list(archive_id=archive.id)
            ]
        ),
        "conversations": sorted((c.summary, c.is_default, len(c.isolated_block_ids)) for c in conversations),
        "windows": sorted(
            [
                (m.role, text_of(m.content), *map(outline, (*m.tool_calls, *m.tool_returns)))
                for m in window.messages[1:]
                if not is_event(m)
            ]
            for window in windows
        ),
        "facts": sorted(fact.text for fact in facts),
    }


async def test_imported_agent_has_all_data_of_the_exported_one(
    mesh: Mesh, fake_openai: FakeOpenAI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = await equip(mesh, fake_openai)
    before = await contents(mesh, agent)
    assert before["facts"] == ["Ada digs", "There is a rock"]
    await export(mesh, agent, tmp_path)
    printed = capsys.readouterr()
    assert re.search(r"lines of traces, episodes and facts, \d+ records\n", printed.out)
    assert printed.err == ""
    # The exporting agent has everything.
    await import_(mesh, tmp_path)
    assert "imported 0 traces in 0 new turns, 0 episodes, 0 facts; skipped" in capsys.readouterr().out
    assert await contents(mesh, agent) == before
    await mesh.client.agents.delete(agent.id)
    await mesh.client.tools.delete(agent.proto.tools[-1].tool_id)
    await import_(mesh, tmp_path)
    printed = capsys.readouterr()
    assert "ada: created agent-" in printed.out
    for part in ("1 tools", "2 blocks", "2 conversations", "2 runs", "2 archives", "3 passages", "1 episodes"):
        assert part in printed.out
    (restored,) = [found async for found in mesh.client.agents.list(name="ada")]
    after = await contents(mesh, restored)
    assert after == before
    (side,) = [c async for c in mesh.client.conversations.list(agent_id=restored.id) if not c.is_default]
    turns = [found.conversation_id async for found in mesh.client.traces.turns(restored.id)]
    assert turns.count(side.id) == 1
    await import_(mesh, tmp_path)
    assert f"ada: exists already as {restored.id}" in capsys.readouterr().out
    imports = [entry async for entry in mesh.client.audit.list(method="ImportAgent")]
    assert [restored.id in entry.resource_ids for entry in imports] == [True]
    assert await contents(mesh, restored) == before
    fake_openai.script = [Reply(tool_calls=[("send_message", {"message": "Yes."})])]
    assert (await turn(restored, "Still there?")).said == "Yes."


async def test_existing_agent_gets_what_it_does_not_have(
    mesh: Mesh, fake_openai: FakeOpenAI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = await equip(mesh, fake_openai)
    fake_openai.script = [Reply(tool_calls=[("send_message", {"message": "Deeper."})]) for _ in range(4)]
    for _ in range(4):
        await turn(agent, "Dig.")
    await agent.compact(settings=agents_pb2.CompactionSettings(mode=agents_pb2.COMPACTION_MODE_SLIDING_WINDOW))
    before = await contents(mesh, agent)
    await export(mesh, agent, tmp_path)
    other = await mesh.client.agents.create("eve", model="openai/fake-model", type="letta_v1")
    own = await contents(mesh, other)
    for created in (True, False):
        await import_(mesh, tmp_path, "eve")
        said = ", 1 block, 1 conversation, 3 passages;" in capsys.readouterr().out
        assert said == created
        after = await contents(mesh, other)
        for name in ("archives", "passages", "blocks"):
            assert after[name] == before[name], name
        assert [summary for summary, *_ in after["conversations"]] == [
            summary for summary, *_ in before["conversations"]
        ]
        window = await mesh.client.messages.window(other.proto.default_conversation_id)
        assert [m.role for m in window.messages].count(message_pb2.ROLE_SUMMARY) == 1
        assert after["settings"] == own["settings"]


async def test_traces_of_other_programs_are_imported_into_every_agent_type(
    mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "seed"
    directory.mkdir()
    (directory / "raw_traces.jsonl").write_text(SEED_LINES)
    for kind in ("letta_v1", "memgpt_v2"):
        agent = await mesh.client.agents.create(kind, model="openai/fake-model", type=kind)
        turns = len([found async for found in mesh.client.traces.turns(agent.id)])
        size = len(await window_of(mesh.client, agent))
        for traces in (4, 0):
            await import_(mesh, directory, kind)
            imported = traces // 4
            said = f"{kind}: imported {traces} traces in {imported} new turn{'s' * (imported != 1)}"
            assert said in capsys.readouterr().out
        assert len([found async for found in mesh.client.traces.turns(agent.id)]) == turns + 1
        assert len(await window_of(mesh.client, agent)) == size + 4
        await export(mesh, agent, tmp_path)
        lines = (tmp_path / "agents" / agent.id / "raw_traces.jsonl").read_text().splitlines()
        line = next(line for line in map(json.loads, lines) if line["id"] == "rt_001")
        assert line.get("imported_turn_id", line["turn_id"]) == "turn_0001"


async def test_imported_agent_has_a_partner_that_processes_nothing_again(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client
    agent = await client.agents.create(
        "ada", model="mnemesh/rehearsal", blocks={"human": "Ada."}, enable_sleeptime=True
    )
    await client.passages.insert_many([archives_pb2.Passage(text="An oak.")], agent_id=agent.id)
    await client.archives.create("library", agent_ids=[agent.id])
    await turn(agent, "Hello.")
    group = await client.groups.find_managed_by(agent.id)
    assert group is not None
    assert group.proto.turns_counter == 1
    await client.blocks.create("own", agent_ids=[agent.id])
    directory = tmp_path / agent.id
    await export(mesh, agent, directory)
    await agent.delete()
    for _ in range(2):
        await import_(mesh, directory)
    (restored, partner) = [each async for each in client.agents.list(order="asc")]
    assert (restored.name, restored.proto.enable_sleeptime) == ("ada", True)
    assert (partner.name, partner.proto.created_for_agent_id) == ("ada-sleeptime", restored.id)
    labels = {block.label for block in (await restored.memory()).blocks}
    assert labels == {"human", "own"}
    assert {block.label for block in (await partner.memory()).blocks} == {*labels, "memory_persona"}
    for holder in (restored, partner):
        names = {archive.name async for archive in client.archives.list(agent_id=holder.id)}
        assert names == {"Archival memory", "library"}
        assert [each.text async for each in client.passages.list(agent_id=holder.id)] == ["An oak."]
    assert (await client.sleeptime.preview(agent_id=restored.id)).message_count == 0
    group = await client.groups.find_managed_by(restored.id)
    assert group is not None
    assert group.proto.turns_counter == 1, "the partner goes on in its rhythm"
    off = await restored.update(enable_sleeptime=False)
    await import_(mesh, directory)
    assert not (await client.agents.find(off.id)).proto.enable_sleeptime


async def test_one_file_moves_an_agent_to_another_mesh(
    mesh: Mesh, fake_openai: FakeOpenAI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = await equip(mesh, fake_openai)
    before, file = await contents(mesh, agent), tmp_path / "agent.mnemesh"
    opened: Any = Opened(mesh.client)
    await export_import._export_file(opened, agent.id, file)
    (tmp_path / "other").mkdir()
    async with Mesh(tmp_path / "other", openai_base_url=fake_openai.base_url, in_memory=True) as other:
        connection: Any = Opened(other.client)
        lines = file.read_text().splitlines()
        for text, problem in (("[]", "line 3: not a JSON object"), ('{"message":{"id":3}}', "line 3: ")):
            broken = tmp_path / "broken.mnemesh"
            broken.write_text("\n".join([*lines[:2], text]))
            with pytest.raises(InvalidArgument, match=problem):
                await export_import._open_and_import(connection, broken, None)
        for verb in ("created", "exists already as"):
            await export_import._open_and_import(connection, file, None)
            assert f"ada: {verb} {agent.id}" in capsys.readouterr().out
        assert await contents(other, await other.client.agents.get(agent.id)) == before
