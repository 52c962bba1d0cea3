"""Adapters of agents, their sessions, and embeddings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2, conversations_pb2
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import conversations_service_pb2 as conversations_rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.agents.v1.conversations_service_pb2_grpc import ConversationServiceStub
from mnemesh.archival.v1 import embeddings_service_pb2 as embeddings_rpc
from mnemesh.archival.v1.embeddings_service_pb2_grpc import EmbeddingServiceStub
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_from_proto

from mnemesh_gateway.errors import EmbedderUnknown, InvalidRequest, UnknownEmbedder
from mnemesh_gateway.model.models import AgentInfo, EmbeddedTexts
from mnemesh_gateway.model.sessions import OVERLAY_DESCRIPTION, OVERLAY_LABEL, OVERLAY_NAME, Overlay

READ: Final = 5.0
WRITE: Final = 10.0
EMBED: Final = 60.0
ACCEPTANCE: Final = 5.0
"""The time in seconds after which a message that the orchestrator has not accepted is not sent again."""
PATIENCE: Final = 60.0
"""The time in seconds for which a broken stream is retried without an event."""

_PAGE: Final = 200
_PARTNERS: Final = (pb.AGENT_TYPE_SLEEPTIME, pb.AGENT_TYPE_VOICE_SLEEPTIME)


class AgentsClient:
    """Agents of the current principal's organization."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AgentServiceStub(channel)

    async def get(self, agent_id: str) -> AgentInfo:
        """Returns an agent. Raises NotFound."""
        response = await self._stub.GetAgent(rpc.GetAgentRequest(agent_id=agent_id), timeout=READ)
        return agent_from_proto(response.agent)

    async def named(self, name: str) -> tuple[AgentInfo, ...]:
        """Returns the agents with a name; at most two."""
        request = rpc.ListAgentsRequest(page_size=2, filter=rpc.AgentFilter(name=name))
        response = await self._stub.ListAgents(request, timeout=READ)
        return tuple(agent_from_proto(agent) for agent in response.agents)

    async def list(self) -> AsyncIterator[AgentInfo]:
        """Yields all agents that are not hidden, oldest first."""
        request = rpc.ListAgentsRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, filter=rpc.AgentFilter(hidden=False)
        )
        while True:
            page = await self._stub.ListAgents(request, timeout=READ)
            for agent in page.agents:
                yield agent_from_proto(agent)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


def agent_from_proto(agent: pb.Agent) -> AgentInfo:
    """Returns the agent of a message."""
    return AgentInfo(
        id=agent.id,
        name=agent.name,
        model=agent.model,
        default_conversation_id=agent.default_conversation_id,
        created_at=timestamp_from_proto(agent.create_time, "create_time"),
        is_partner=agent.type in _PARTNERS,
        keeps_prompt=agent.prompt_policy == pb.PROMPT_POLICY_CACHE,
    )


class ConversationsClient:
    """Conversations with a block of their own for the overlay."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ConversationServiceStub(channel)
        self._agents = AgentServiceStub(channel)

    async def open(self, agent_id: str, key: str) -> tuple[str, str]:
        """Returns the ids of the agent's conversation with this key and of its overlay block; creates what is missing.

        Raises:
            NotFound: The agent does not exist.
        """
        conversation = conversations_pb2.Conversation(
            agent_id=agent_id, key=key, isolated_block_labels=[OVERLAY_LABEL], summary=f"Gateway: {key}"
        )
        request = conversations_rpc.CreateConversationRequest(conversation=conversation, create_missing_blocks=True)
        response = await self._stub.CreateConversation(request, timeout=WRITE)
        return response.conversation.id, response.conversation.isolated_block_ids[0]

    async def find(self, conversation_id: str) -> tuple[str, str | None]:
        """Returns the id of the agent of a conversation, and of its overlay block if it has one. Raises NotFound."""
        request = conversations_rpc.GetConversationRequest(conversation_id=conversation_id)
        found = (await self._stub.GetConversation(request, timeout=READ)).conversation
        blocks = dict(zip(found.isolated_block_labels, found.isolated_block_ids, strict=False))
        return found.agent_id, blocks.get(OVERLAY_LABEL)

    async def render_system_message(self, agent_id: str, conversation_id: str) -> None:
        """Updates the system message of a conversation to show the overlay."""
        request = agents_service_pb2.RecompileAgentRequest(agent_id=agent_id, conversation_id=conversation_id)
        await self._agents.RecompileAgent(request, timeout=WRITE)


class OverlaysClient:
    """The blocks of overlays."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = BlockServiceStub(channel)

    async def sha256(self, block_id: str) -> str | None:
        """Returns the hash of the instructions in a block; None if it has none. Raises NotFound."""
        request = blocks_service_pb2.GetBlockRequest(block_id=block_id)
        block = (await self._stub.GetBlock(request, timeout=READ)).block
        if not block.HasField("metadata"):
            return None
        metadata: Any = json.loads(block.metadata)
        return metadata.get("system_sha256")  # type: ignore[no-any-return]

    async def write(self, block_id: str, overlay: Overlay, session: str) -> None:
        """Stores instructions in a block that agents cannot edit, with a limit that fits them."""
        block = blocks_pb2.Block(
            id=block_id,
            name=OVERLAY_NAME,
            description=OVERLAY_DESCRIPTION,
            value=overlay.text,
            limit=max(1, len(overlay.text)),
            read_only=True,
            metadata=json.dumps({"proxy_session": session, "system_sha256": overlay.sha256}),
        )
        mask = FieldMask(paths=["name", "description", "value", "limit", "read_only", "metadata"])
        request = blocks_service_pb2.UpdateBlockRequest(block=block, update_mask=mask)
        await self._stub.UpdateBlock(request, timeout=WRITE)


class EmbeddingsClient:
    """Embedders, which are the same for all organizations."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = EmbeddingServiceStub(channel)

    async def embed(self, embedder: str, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns the vectors of texts.

        Raises:
            UnknownEmbedder: There is no such embedder.
            InvalidRequest: A text is not valid, or there are too many. The error names `input` or `input[i]`.
            Unavailable: Archival or the embedder does not answer.
        """
        request = embeddings_rpc.EmbedTextsRequest(embedder=embedder, texts=texts)
        try:
            response = await self._stub.EmbedTexts(request, timeout=EMBED)
        except EmbedderUnknown as error:
            raise UnknownEmbedder(embedder, error.message) from error
        except InvalidArgument as error:
            raise _renamed(error, len(texts)) from error
        vectors = [embedding.values for embedding in response.embeddings]
        tokens = response.tokens if response.HasField("tokens") else None
        return EmbeddedTexts(response.embedder, response.dimension, vectors, tokens)


def _renamed(error: InvalidArgument, count: int) -> InvalidArgument:
    """Returns the error with the names of OpenAI's fields."""
    field = error.field or ""
    if field == "embedder":
        param = "model"
    elif field.startswith("texts"):
        param = "input" if count == 1 else f"input{field.removeprefix('texts')}"
    else:
        return error
    return InvalidRequest(error.message.replace(field, param, 1), param)
