"""Conversations of agents: each has its own context window."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mnemesh.agents.v1 import conversations_pb2, conversations_service_pb2, conversations_service_pb2_grpc
from mnemesh_kit.ids import new_id

from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel


class ConversationsClient:
    """Calls of ConversationService, as `client.conversations`."""

    def __init__(self, channel: Channel) -> None:
        self.stub = conversations_service_pb2_grpc.ConversationServiceStub(channel)

    async def create(
        self, conversation: conversations_pb2.Conversation, *, request_id: str = ""
    ) -> conversations_pb2.Conversation:
        """Creates a conversation of the agent that it names. `request_id` is the idempotency key."""
        request = conversations_service_pb2.CreateConversationRequest(
            request_id=request_id or new_id("request"), conversation=conversation
        )
        return (await self.stub.CreateConversation(request)).conversation

    def list(
        self, *, agent_id: str | None = None, order: Order | None = None, limit: int | None = None
    ) -> AsyncIterator[conversations_pb2.Conversation]:
        """Yields the conversations of an agent or of the organization."""
        request = conversations_service_pb2.ListConversationsRequest(order=sort_order(order), agent_id=agent_id)
        return paginate(self.stub.ListConversations, request, "conversations", limit)
