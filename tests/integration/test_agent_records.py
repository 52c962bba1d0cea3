"""An agent moves to another mesh by ExportAgent and ImportAgent, and is the same there."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import agent_records_pb2 as pb
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, conversations_pb2, conversations_service_pb2
from mnemesh.archival.v1 import archives_pb2
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_client.errors import InvalidArgument, NotFound, RequestIdReused
from mnemesh_kit.ids import derive_id
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import stored, turn, window_of

Records = list[pb.AgentRecord]
TOOL = '''
def dig(depth: int) -> str:
    """Digs a hole.

    Args:
        depth: in metres.
    """
    print("digging")
    return "a rock"
'''


@pytest.fixture
async def mesh(tmp_path: Path, fake_openai: FakeOpenAI) -> AsyncIterator[Mesh]:
    (tmp_path / "mesh").mkdir()
    async with Mesh(tmp_path / "mesh", openai_base_url=fake_openai.base_url, in_memory=True) as mesh:
        yield mesh


async def equipped(mesh: Mesh, fake_openai: FakeOpenAI) -> Agent:
    """Returns an agent with something of every type of record."""
    client = mesh.client
    tool = await client.tools.create(TOOL)
    human = blocks_pb2.Block(label="human", value="Name: Ada", limit=300, metadata='{"z":1,"a":2}', tags=["t"])
    agent = await client.agents.create(
        "ada", model="openai/fake-model", type="letta_v1", blocks=[human], tools=[tool.id],
        metadata={"kind": "test"}, tags=["old"], system="You are Ada. {CORE_MEMORY}",
    )  # fmt: skip
    rule = agents_pb2.ToolRule(max_count_per_step=agents_pb2.MaxCountPerStepRule(tool_name="dig", max_count=3))
    settings = agents_pb2.CompactionSettings(mode=agents_pb2.COMPACTION_MODE_EPISODIC, memory_scope="team")
    agent = await agent.update(tool_rules=[rule], compaction_settings=settings)
    await client.identities.upsert("ada@example.org", name="Ada", agent_ids=[agent.id])
    fake_openai.script = [
        Reply(reasoning="Rocks.", text="Let me dig.", tool_calls=[("dig", {"depth": 3})]),
        Reply(text="A rock."),
    ]
    assert (await turn(agent, "Dig.")).said.endswith("A rock.")
    (block,) = (await agent.memory()).blocks
    await client.blocks.update(block.id, value="Name: Ada. Likes rocks.")
    await client.blocks.update(block.id, description="The user")
    undo = blocks_service_pb2.RevertBlockRequest(
        block_id=block.id,
        author=blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor()),
        undo=blocks_service_pb2.UndoTarget(),
    )
    await client.blocks.stub.RevertBlock(undo)
    side = await client.conversations.create(
        conversations_pb2.Conversation(
            agent_id=agent.id, summary="Aside", isolated_block_labels=["human"], key="side", model="openai/fake-model"
        )
    )
    fake_openai.script = [Reply(text="Hm.")]
    async for _ in agent.send("Aside, please.", conversation_id=side.id):
        pass
    fork = conversations_service_pb2.ForkConversationRequest(conversation_id=side.id)
    await client.conversations.stub.ForkConversation(fork)
    schedule = await client.schedules.create("Dig.", agent_id=agent.id, conversation_id=side.id, cron="0 9 * * *")
    await client.schedules.pause(schedule.id)
    received = Timestamp()
    received.FromDatetime(datetime(2025, 3, 1, tzinfo=UTC))
    passages = [archives_pb2.Passage(text=f"Passage {n}", tags=["t", str(n)], create_time=received) for n in range(3)]
    await client.passages.insert_many(passages, agent_id=agent.id)
    await client.archives.create("library", agent_ids=[agent.id], metadata={"shelf": 3})
    scope = episodes_pb2.MemoryScope(name="team")
    source = episodes_pb2.MemorySource(agent_id=agent.id)
    await client.episodes.commit(scope, "They dug.", turn_ids=["turn_0001"], source=source)
    fact = (await client.facts.create("Ada digs", agent_id=agent.id)).fact
    await client.facts.supersede(fact.id, "Ada digs deeply")
    own = episodes_pb2.MemoryScope(conversation_id=side.id)
    await client.episodes.commit(own, "An aside.", source=source)
    return await client.agents.get(agent.id)


async def exported(mesh: Mesh, agent_id: str, **options: Any) -> Records:
    request = agents_service_pb2.ExportAgentRequest(agent_id=agent_id, **options)
    return [record async for part in mesh.client.agents.stub.ExportAgent(request) for record in part.records]


async def imported(
    mesh: Mesh, records: Sequence[pb.AgentRecord], request_id: str, **options: Any
) -> agents_service_pb2.ImportAgentResponse:
    def requests() -> Iterator[agents_service_pb2.ImportAgentRequest]:
        yield agents_service_pb2.ImportAgentRequest(
            options=agents_service_pb2.ImportOptions(request_id=request_id, **options)
        )
        for start in range(0, len(records), 7):
            yield agents_service_pb2.ImportAgentRequest(records=records[start : start + 7])

    return await mesh.client.agents.stub.ImportAgent(requests())


def comparable(records: Records) -> Records:
    """Returns the records without the time of the export."""
    copies = []
    for record in records:
        copy = pb.AgentRecord()
        copy.CopyFrom(record)
        if copy.WhichOneof("record") == "header":
            copy.header.ClearField("export_time")
        copies.append(copy)
    return copies


def assert_same(records: Records, expected: Records) -> None:
    assert [record.WhichOneof("record") for record in records] == [record.WhichOneof("record") for record in expected]
    for record, other in zip(comparable(records), comparable(expected), strict=True):
        assert record == other


def types_of(records: Records) -> set[str]:
    return {record.WhichOneof("record") or "" for record in records}


async def test_an_agent_is_the_same_in_an_empty_mesh(mesh: Mesh, fake_openai: FakeOpenAI, tmp_path: Path) -> None:
    agent = await equipped(mesh, fake_openai)
    records = await exported(mesh, agent.id)
    assert {"identity", "tool", "block", "block_revision", "conversation", "run", "step", "message"} <= types_of(
        records
    )
    assert {"archive", "passage", "episode", "fact", "schedule"} <= types_of(records)
    outputs = [item for record in records for item in record.message.tool_returns]
    assert outputs[0].stdout

    (tmp_path / "other").mkdir()
    async with Mesh(tmp_path / "other", openai_base_url=fake_openai.base_url, in_memory=True) as other:
        response = await imported(other, records, "move-1", keep_ids=True)
        assert response.kept_ids
        assert response.agent.id == agent.id
        assert not response.skipped
        assert {item.type: item.existing for item in response.counts if item.existing} == {}
        again = await exported(other, agent.id)
        assert_same(again, records)
        copy = await other.client.agents.get(agent.id)
        assert [message.id for message in await window_of(other.client, copy)] == [
            message.id for message in await window_of(mesh.client, agent)
        ]
        fake_openai.script = [Reply(text="Yes, a rock.")]
        assert (await turn(copy, "Did you find anything?")).said == "Yes, a rock."


async def test_a_copy_beside_the_agent_has_new_ids(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await equipped(mesh, fake_openai)
    active = await mesh.client.schedules.create("Dig.", agent_id=agent.id, cron="0 9 * * *", time_zone="Europe/Rome")
    records = await exported(mesh, agent.id)
    response = await imported(mesh, records, "copy-1", keep_ids=True, append_copy_suffix=True)
    assert not response.kept_ids
    assert response.agent.name == "ada_copy"
    copy = await mesh.client.agents.get(response.agent.id)
    assert response.ids[agent.id] == copy.id
    counts = {pb.RecordType.Name(item.type).removeprefix("RECORD_TYPE_"): item for item in response.counts}
    assert counts["TOOL"].existing == counts["IDENTITY"].existing == 1
    assert counts["BLOCK"].existing == counts["ARCHIVE"].existing == 0
    originals, copies = await stored(agent), await stored(copy)
    assert [message.content for message in originals] == [message.content for message in copies]
    assert not {message.id for message in originals} & {message.id for message in copies}
    (own,) = (await copy.memory()).blocks
    await mesh.client.blocks.update(own.id, value="Name: Eve")
    assert (await agent.memory()).blocks[0].value == "Name: Ada"
    assert {passage.text async for passage in mesh.client.passages.list(agent_id=copy.id)} == {
        "Passage 0", "Passage 1", "Passage 2"
    }  # fmt: skip
    _, scheduled = [schedule async for schedule in mesh.client.schedules.list(agent_id=copy.id)]
    assert (scheduled.paused, scheduled.conversation_id) == (True, copy.proto.default_conversation_id)
    assert (await mesh.client.schedules.get(active.id)) == active, "that of the exported agent goes on"
    assert (await mesh.client.schedules.resume(scheduled.id)).next_run_time == active.next_run_time


async def test_a_repeated_import_creates_nothing_twice(mesh: Mesh, fake_openai: FakeOpenAI, tmp_path: Path) -> None:
    agent = await equipped(mesh, fake_openai)
    records = await exported(mesh, agent.id)
    (tmp_path / "other").mkdir()
    async with Mesh(tmp_path / "other", openai_base_url=fake_openai.base_url, in_memory=True) as other:
        for length in (3, len(records) // 2, len(records) - 1):
            with pytest.raises(InvalidArgument, match="end"):
                await imported(other, records[:length], "move-1", keep_ids=True)
            with pytest.raises(NotFound):
                await other.client.agents.get(agent.id)
        first = await imported(other, records, "move-1", keep_ids=True)
        again = await imported(other, records, "move-1", keep_ids=True)
        assert again.replayed
        assert first.counts == again.counts
        assert not any(item.existing for item in first.counts)
        found = await exported(other, agent.id)
        assert_same(found, records)
        with pytest.raises(RequestIdReused):
            await imported(other, records, "move-1", keep_ids=False)


async def test_an_error_names_the_record_and_its_field(mesh: Mesh) -> None:
    agent = pb.AgentRecord(agent=agents_pb2.Agent(id=derive_id("agent", "a"), name="a", model="mnemesh/rehearsal"))
    agent.agent.create_time.GetCurrentTime()
    header = pb.AgentRecord(header=pb.RecordsHeader(format_version=1, source="a test"))
    message = pb.AgentRecord(message=message_pb2.Message(id=derive_id("message", "a"), role=message_pb2.ROLE_USER))
    message.message.create_time.GetCurrentTime()
    message.message.content.add().text.text = "Hello"
    broken = pb.AgentRecord()
    broken.CopyFrom(message)
    broken.message.id = derive_id("message", "b")
    broken.message.content[0].text.text = "a\x00b"
    cases: list[tuple[Records, str, str]] = [
        ([agent], "1", "records.header"),
        ([pb.AgentRecord(header=pb.RecordsHeader(format_version=2))], "1", "header.format_version"),
        ([header, message], "2", "records.agent"),
        ([header, agent, message, broken], "4", "message.content[0].text.text"),
        ([header, agent, message, agent], "4", "records"),
        ([header, agent, message, pb.AgentRecord()], "4", "records"),
        ([header, agent, pb.AgentRecord(end=pb.RecordsEnd(record_count=5))], "3", "end.record_count"),
    ]
    end = pb.AgentRecord(end=pb.RecordsEnd(record_count=4))
    for number, (records, index, field) in enumerate(cases):
        with pytest.raises(InvalidArgument) as caught:
            await imported(mesh, [*records, end], f"bad-{number}")
        assert (caught.value.metadata.get("record"), caught.value.field) == (index, field)
    assert [agent async for agent in mesh.client.agents.list()] == []


async def test_parts_can_be_left_out(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await equipped(mesh, fake_openai)
    some = await exported(mesh, agent.id, types=[pb.RECORD_TYPE_BLOCK])
    assert types_of(some) == {"header", "agent", "block", "end"}
    records = await exported(mesh, agent.id)
    no_conversations = [kind for kind in pb.RecordType.values() if kind not in (0, pb.RECORD_TYPE_CONVERSATION)]
    response = await imported(mesh, records, "some", types=no_conversations, name="some")
    (skipped,) = (item for item in response.skipped if item.type == pb.RECORD_TYPE_SCHEDULE)
    assert "conversation" in skipped.reason
    response = await imported(mesh, records, "bare", strip_messages=True, name="bare", model="mnemesh/rehearsal")
    copy = await mesh.client.agents.get(response.agent.id)
    assert (copy.name, copy.proto.model) == ("bare", "mnemesh/rehearsal")
    (system,) = (await mesh.client.messages.window(copy.proto.default_conversation_id)).messages
    assert system.role == message_pb2.ROLE_SYSTEM
    assert "Name: Ada" in system.content[0].text.text
