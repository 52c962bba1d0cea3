"""The results of the tools. MCP clients receive them as JSON with a schema."""

# pydantic reads the annotations at run time, so they are not deferred.

from mnemesh.archival.v1 import passages_service_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from typing_extensions import TypedDict

from mnemesh_client.agent import Agent
from mnemesh_client.hits import said, said_by


class AgentEntry(TypedDict):
    """An agent."""

    id: str
    name: str
    description: str


class SurroundingText(TypedDict):
    """A message or a passage around a hit. `speaker` is a name, or else a role; null for a passage."""

    speaker: str | None
    text: str


class MemoryHit(TypedDict):
    """A message or a passage that a search found. `time` is ISO 8601 in UTC.

    `question` is what was asked just before, if the hit may answer it.
    """

    kind: str
    text: str
    time: str
    role: str | None
    speaker: str | None
    conversation_id: str | None
    question: str | None
    before: list[SurroundingText]
    after: list[SurroundingText]
    tags: list[str]


class StoredPassage(TypedDict):
    """A passage that was stored."""

    passage_id: str


class BlockEntry(TypedDict):
    """A block of core memory. `limit` counts characters."""

    label: str
    description: str
    value: str
    limit: int
    read_only: bool
    revision: int


class AgentReply(TypedDict):
    """The reply of an agent, and its run."""

    reply: str
    run_id: str


def agent_entry(agent: Agent) -> AgentEntry:
    """Returns the entry of an agent."""
    return AgentEntry(id=agent.id, name=agent.name, description=agent.proto.description)


def message_hit(hit: messages_service_pb2.MessageHit) -> MemoryHit:
    """Returns the entry of a message."""
    message = hit.message
    return MemoryHit(
        kind="message",
        text=hit.text,
        time=message.create_time.ToJsonString(),
        role=message_pb2.Role.Name(message.role).removeprefix("ROLE_").lower(),
        speaker=message.name or None,
        conversation_id=message.conversation_id or None,
        question=said(hit.question) if hit.HasField("question") else None,
        before=[SurroundingText(speaker=said_by(each), text=said(each)) for each in hit.before],
        after=[SurroundingText(speaker=said_by(each), text=said(each)) for each in hit.after],
        tags=[],
    )


def passage_hit(hit: passages_service_pb2.PassageHit) -> MemoryHit:
    """Returns the entry of a passage."""
    passage = hit.passage
    return MemoryHit(
        kind="passage",
        text=passage.text,
        time=passage.create_time.ToJsonString(),
        role=None,
        speaker=None,
        conversation_id=None,
        question=None,
        before=[SurroundingText(speaker=None, text=each.text) for each in hit.before],
        after=[SurroundingText(speaker=None, text=each.text) for each in hit.after],
        tags=list(passage.tags),
    )


def block_entry(block: blocks_pb2.Block) -> BlockEntry:
    """Returns the entry of a block."""
    return BlockEntry(
        label=block.label,
        description=block.description,
        value=block.value,
        limit=block.limit,
        read_only=block.read_only,
        revision=block.revision,
    )
