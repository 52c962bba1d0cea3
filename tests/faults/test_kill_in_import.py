"""kill -9 of the orchestrator in the middle of an import: the repeated import stores everything once."""

from collections.abc import AsyncIterator, Iterator

import pytest
from mnemesh.agents.v1 import agent_records_pb2 as pb
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, conversations_pb2
from mnemesh.archival.v1 import archives_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client.errors import MnemeshError, NotFound
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(300))]

MESSAGES, PASSAGES, REVISIONS = 500, 300, 40
PART = 20
"""Records per request."""


class Source:
    """The records of an agent that never existed."""

    def __init__(self) -> None:
        self.key = new_id("x")
        self.agent_id = derive_id("agent", self.key)
        self.conversation_id = derive_id("conv", self.agent_id)
        self.message_ids = [derive_id("message", self.key, str(number)) for number in range(MESSAGES)]

    def records(self) -> list[pb.AgentRecord]:
        records = [*self._records()]
        return [*records, pb.AgentRecord(end=pb.RecordsEnd(record_count=len(records)))]

    def _records(self) -> Iterator[pb.AgentRecord]:
        yield pb.AgentRecord(header=pb.RecordsHeader(format_version=1, source="a test"))
        agent = agents_pb2.Agent(id=self.agent_id, name="moved", model="mnemesh/rehearsal", system="You remember.")
        agent.create_time.GetCurrentTime()
        now = agent.create_time
        yield pb.AgentRecord(agent=agent)
        block = blocks_pb2.Block(
            id=derive_id("block", self.key), label="human", value=f"Value {REVISIONS}", limit=100, revision=REVISIONS,
            create_time=now, update_time=now,
        )  # fmt: skip
        yield pb.AgentRecord(block=pb.BlockRecord(block=block))
        for number in range(1, REVISIONS + 1):
            revision = blocks_pb2.BlockRevision(
                block_id=block.id, revision=number, operation=blocks_pb2.BLOCK_OPERATION_UPDATE, label="human",
                value=f"Value {number}", limit=100, create_time=now,
            )  # fmt: skip
            yield pb.AgentRecord(block_revision=revision)
        conversation = conversations_pb2.Conversation(
            id=self.conversation_id, agent_id=self.agent_id, is_default=True, create_time=now,
            message_ids=[self.message_ids[0], *self.message_ids[-40:]],
        )  # fmt: skip
        yield pb.AgentRecord(conversation=conversation)
        for number, message_id in enumerate(self.message_ids):
            role = message_pb2.ROLE_SYSTEM if number == 0 else message_pb2.ROLE_USER
            message = message_pb2.Message(
                id=message_id, agent_id=self.agent_id, role=role, conversation_id=self.conversation_id, create_time=now
            )
            message.content.add().text.text = f"Message {number}"
            yield pb.AgentRecord(message=message)
        archive = archives_pb2.Archive(
            id=derive_id("archive", self.key), name="library", create_time=now, update_time=now
        )
        yield pb.AgentRecord(archive=archive)
        for number in range(PASSAGES):
            passage = archives_pb2.Passage(
                id=derive_id("passage", self.key, str(number)), archive_id=archive.id, text=f"Passage {number}",
                create_time=now,
            )  # fmt: skip
            yield pb.AgentRecord(passage=pb.PassageRecord(passage=passage))


async def import_(
    mesh: ProcessMesh, source: Source, kill_at: int | None = None
) -> agents_service_pb2.ImportAgentResponse:
    """Imports the agent, and kills the orchestrator when the record at `kill_at` is to be sent."""
    records = source.records()

    async def requests() -> AsyncIterator[agents_service_pb2.ImportAgentRequest]:
        options = agents_service_pb2.ImportOptions(request_id=source.key, keep_ids=True)
        yield agents_service_pb2.ImportAgentRequest(options=options)
        for start in range(0, len(records), PART):
            if kill_at is not None and start >= kill_at:
                await mesh.kill("orchestrator")
                return
            yield agents_service_pb2.ImportAgentRequest(records=records[start : start + PART])

    return await mesh.client.agents.stub.ImportAgent(requests(), timeout=scaled(120))


@pytest.mark.full
async def test_a_repeated_import_stores_everything_once(mesh: ProcessMesh) -> None:
    source = Source()
    for kill_at in (REVISIONS, 300, MESSAGES + 200):
        with pytest.raises(MnemeshError):
            await import_(mesh, source, kill_at)
        await mesh.start("orchestrator")
        with pytest.raises(NotFound):
            await mesh.client.agents.get(source.agent_id)

    response = await import_(mesh, source)

    assert response.kept_ids
    created = {item.type: item.created for item in response.counts}
    assert created[pb.RECORD_TYPE_MESSAGE] == MESSAGES
    assert created[pb.RECORD_TYPE_PASSAGE] == PASSAGES
    assert created[pb.RECORD_TYPE_BLOCK_REVISION] == REVISIONS
    assert created[pb.RECORD_TYPE_BLOCK] == created[pb.RECORD_TYPE_ARCHIVE] == created[pb.RECORD_TYPE_AGENT] == 1
    assert not any(item.existing or item.skipped for item in response.counts)
    agent = await mesh.client.agents.get(source.agent_id)
    assert [message.id async for message in agent.messages(order="asc")] == source.message_ids
    passages = [passage.text async for passage in agent.passages(order="asc")]
    assert sorted(passages) == sorted(f"Passage {number}" for number in range(PASSAGES))
    (block,) = (await agent.memory()).blocks
    revisions = [each.revision async for each in mesh.client.blocks.revisions(block.id)]
    assert (block.value, sorted(revisions)) == (f"Value {REVISIONS}", [*range(1, REVISIONS + 1)])
    window = await mesh.client.messages.window(source.conversation_id)
    assert [message.id for message in window.messages] == [source.message_ids[0], *source.message_ids[-40:]]
