"""mnemesh.agents.v1.ConversationService."""

from dataclasses import replace
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh.agents.v1 import conversations_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token, page_query
from mnemesh_kit.principal import current_principal

from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.rpc.convert.conversations import (
    CHANGES,
    conversation_to_proto,
    draft_from_proto,
    filter_from_proto,
    summary_from_proto,
)
from mnemesh_orchestrator.rpc.convert.runs import named_conversation, on_busy_from
from mnemesh_orchestrator.usecases.conversations import ConversationService

Context = grpc.aio.ServicerContext[Any, Any]

_ORDERS: Final = {
    rpc.CONVERSATION_ORDER_BY_UNSPECIFIED: "created_at",
    rpc.CONVERSATION_ORDER_BY_CREATE_TIME: "created_at",
    rpc.CONVERSATION_ORDER_BY_UPDATE_TIME: "updated_at",
    rpc.CONVERSATION_ORDER_BY_LAST_MESSAGE_TIME: "last_message_at",
}


class ConversationsServicer(conversations_service_pb2_grpc.ConversationServiceServicer):
    """Threads of agents."""

    def __init__(self, service: ConversationService) -> None:
        self._service = service

    async def CreateConversation(
        self, request: rpc.CreateConversationRequest, context: Context
    ) -> rpc.CreateConversationResponse:
        """Makes a conversation that holds its system message alone."""
        draft = draft_from_proto(request.conversation)
        key = request_key(request, "CreateConversation")
        made = await self._service.create(current_principal(), key, draft)
        return rpc.CreateConversationResponse(conversation=conversation_to_proto(made))

    async def GetConversation(
        self, request: rpc.GetConversationRequest, context: Context
    ) -> rpc.GetConversationResponse:
        """A conversation, with the ids of its messages where asked."""
        found = await self._service.get(current_principal(), named_conversation(request.conversation_id))
        ids = await self._service.message_ids(found.id) if request.include_message_ids else ()
        return rpc.GetConversationResponse(conversation=conversation_to_proto(found, ids))

    async def ListConversations(
        self, request: rpc.ListConversationsRequest, context: Context
    ) -> rpc.ListConversationsResponse:
        """A page of conversations."""
        if request.order_by not in _ORDERS:
            raise InvalidArgument("order_by is not known.", field="order_by")
        query = page_query(request, default_ascending=False)
        where = filter_from_proto(request)
        page = await self._service.list(current_principal(), where, _ORDERS[request.order_by], query)
        return rpc.ListConversationsResponse(
            conversations=[conversation_to_proto(item) for item in page.items],
            next_page_token=next_page_token(query, page),
        )

    async def UpdateConversation(
        self, request: rpc.UpdateConversationRequest, context: Context
    ) -> rpc.UpdateConversationResponse:
        """Changes the fields in the mask."""
        conversation_id = named_conversation(request.conversation.id, "conversation.id")
        if not request.update_mask.paths:
            raise InvalidArgument("update_mask names no field.", field="update_mask")
        changes: dict[str, Any] = {}
        for path in request.update_mask.paths:
            if path not in CHANGES:
                raise InvalidArgument(f"update_mask: {path} cannot be changed.", field="update_mask")
            changes[path] = CHANGES[path](request.conversation)

        def change(conversation: Conversation) -> Conversation:
            return replace(conversation, **changes)

        key = request_key(request, "UpdateConversation")
        changed = await self._service.update(current_principal(), key, conversation_id, change)
        return rpc.UpdateConversationResponse(conversation=conversation_to_proto(changed))

    async def DeleteConversation(
        self, request: rpc.DeleteConversationRequest, context: Context
    ) -> rpc.DeleteConversationResponse:
        """Deletes a conversation with its window."""
        key = request_key(request, "DeleteConversation")
        await self._service.delete(current_principal(), key, named_conversation(request.conversation_id))
        return rpc.DeleteConversationResponse()

    async def ForkConversation(
        self, request: rpc.ForkConversationRequest, context: Context
    ) -> rpc.ForkConversationResponse:
        """Shares the messages of a conversation under a new system message."""
        source_id = named_conversation(request.conversation_id)
        until = None
        if request.HasField("until_message_id"):
            until = require_id(request.until_message_id, "message", "until_message_id")
        key = request_key(request, "ForkConversation")
        made = await self._service.fork(
            current_principal(), key, source_id, until, summary_from_proto(request), on_busy_from(request)
        )
        return rpc.ForkConversationResponse(conversation=conversation_to_proto(made))
