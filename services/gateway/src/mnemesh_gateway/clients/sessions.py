"""Conversations of the orchestrator, and the blocks of overlays, over gRPC."""

from __future__ import annotations

import json
from typing import Any

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_service_pb2, conversations_pb2
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.agents.v1.conversations_service_pb2_grpc import ConversationServiceStub
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub

from mnemesh_gateway.clients import deadlines
from mnemesh_gateway.model.sessions import OVERLAY_DESCRIPTION, OVERLAY_LABEL, OVERLAY_NAME, Overlay


class ConversationsClient:
    """ConversationsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ConversationServiceStub(channel)
        self._agents = AgentServiceStub(channel)

    async def open(self, agent_id: str, key: str) -> tuple[str, str]:
        """See ConversationsPort."""
        conversation = conversations_pb2.Conversation(
            agent_id=agent_id, key=key, isolated_block_labels=[OVERLAY_LABEL], summary=f"Gateway: {key}"
        )
        request = rpc.CreateConversationRequest(conversation=conversation, create_missing_blocks=True)
        response = await self._stub.CreateConversation(request, timeout=deadlines.WRITE)
        return response.conversation.id, response.conversation.isolated_block_ids[0]

    async def find(self, conversation_id: str) -> tuple[str, str | None]:
        """See ConversationsPort."""
        request = rpc.GetConversationRequest(conversation_id=conversation_id)
        found = (await self._stub.GetConversation(request, timeout=deadlines.READ)).conversation
        blocks = dict(zip(found.isolated_block_labels, found.isolated_block_ids, strict=False))
        return found.agent_id, blocks.get(OVERLAY_LABEL)

    async def render_system_message(self, agent_id: str, conversation_id: str) -> None:
        """See ConversationsPort."""
        request = agents_service_pb2.RecompileAgentRequest(agent_id=agent_id, conversation_id=conversation_id)
        await self._agents.RecompileAgent(request, timeout=deadlines.WRITE)


class OverlaysClient:
    """OverlaysPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = BlockServiceStub(channel)

    async def sha256(self, block_id: str) -> str | None:
        """See OverlaysPort."""
        request = blocks_service_pb2.GetBlockRequest(block_id=block_id)
        block = (await self._stub.GetBlock(request, timeout=deadlines.READ)).block
        if not block.HasField("metadata"):
            return None
        metadata: Any = json.loads(block.metadata)
        return metadata.get("system_sha256")  # type: ignore[no-any-return]

    async def write(self, block_id: str, overlay: Overlay, session: str) -> None:
        """See OverlaysPort."""
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
        await self._stub.UpdateBlock(request, timeout=deadlines.WRITE)
