"""Conversations of agents: each has its own context window."""

from collections.abc import AsyncIterator
from typing import Any, Final

from mnemesh.agents.v1 import conversations_pb2, conversations_service_pb2, conversations_service_pb2_grpc, runs_pb2
from mnemesh_kit.ids import new_id

from mnemesh_client.inputs import update_request
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel

_QUEUE_SECONDS: Final = 330.0


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

    async def get(self, conversation_id: str, *, include_message_ids: bool = False) -> conversations_pb2.Conversation:
        """Returns a conversation, with the ids of the messages in its window if they are asked for."""
        request = conversations_service_pb2.GetConversationRequest(
            conversation_id=conversation_id, include_message_ids=include_message_ids
        )
        return (await self.stub.GetConversation(request)).conversation

    async def update(self, conversation_id: str, **fields: Any) -> conversations_pb2.Conversation:
        """Updates fields of a conversation (summary, model, …). None clears a field."""
        kind = conversations_service_pb2.UpdateConversationRequest
        request = update_request(kind, "conversation", conversation_id, fields)
        return (await self.stub.UpdateConversation(request)).conversation

    async def fork(
        self,
        conversation_id: str,
        *,
        until_message_id: str | None = None,
        summary: str | None = None,
        request_id: str = "",
    ) -> conversations_pb2.Conversation:
        """Creates a conversation that shares the messages of another one. Waits for its active and queued runs.

        Args:
            conversation_id: the conversation to share the messages of.
            until_message_id: the last message to share; None shares all.
            summary: the summary of the new conversation, for people.
            request_id: the idempotency key; empty creates a new one.
        """
        request = conversations_service_pb2.ForkConversationRequest(
            request_id=request_id,
            conversation_id=conversation_id,
            until_message_id=until_message_id,
            summary=summary,
            on_busy=runs_pb2.ON_BUSY_WAIT,
        )
        return (await self.stub.ForkConversation(request, timeout=_QUEUE_SECONDS)).conversation

    async def delete(self, conversation_id: str) -> None:
        """Deletes a conversation and its window. Its messages stay in recall.

        Raises:
            FailedPrecondition: it is the default conversation of an agent, which is deleted with the agent.
            Aborted: CONVERSATION_BUSY.
        """
        request = conversations_service_pb2.DeleteConversationRequest(conversation_id=conversation_id)
        await self.stub.DeleteConversation(request)
