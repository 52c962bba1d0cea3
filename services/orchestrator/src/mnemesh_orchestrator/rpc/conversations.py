"""`mnemesh.agents.v1.ConversationService`, with the conversion of its requests."""

from dataclasses import replace
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import conversations_pb2 as pb
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh.agents.v1 import conversations_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field

from mnemesh_orchestrator.model.conversations import (
    Conversation,
    ConversationDraft,
    ConversationFilter,
    ConversationOrder,
)
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.rpc.convert.runs import any_conversation_id_from_proto
from mnemesh_orchestrator.usecases.conversations import ConversationService

enum_of(rpc.ConversationOrderBy, ConversationOrder, "CREATED_AT")
_DRAFT: Final = Conversion(pb.Conversation, ConversationDraft)
_FILTER: Final = Conversion(rpc.ListConversationsRequest, ConversationFilter)
_WRITABLE: Final = ("summary", "description", "archived", "model", "model_settings")


def conversation_draft_from_proto(request: rpc.CreateConversationRequest) -> ConversationDraft:
    """Returns the draft of a conversation. Raises InvalidArgument if the id of the agent is malformed."""
    require_id(request.conversation.agent_id, "agent", "conversation.agent_id")
    create = request.create_missing_blocks
    draft = _DRAFT.from_proto(request.conversation, "conversation", create_missing_blocks=create)
    return replace(draft, isolated_block_labels=tuple(dict.fromkeys(draft.isolated_block_labels)))


def conversation_update_from_proto(request: rpc.UpdateConversationRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the conversation, and the new values by the field names of `Conversation`."""
    conversation_id = any_conversation_id_from_proto(request.conversation.id, "conversation.id")
    return conversation_id, _DRAFT.changes(request.conversation, request.update_mask, _WRITABLE, "conversation")


def conversation_filter_from_proto(request: rpc.ListConversationsRequest) -> ConversationFilter:
    """Returns the filter of a list of conversations. Raises InvalidArgument if the id of the agent is malformed."""
    require_ids(request, "", agent_id="agent")
    return _FILTER.from_proto(request)


Context = grpc.aio.ServicerContext[Any, Any]


class ConversationsServicer(conversations_service_pb2_grpc.ConversationServiceServicer):
    """Serves the conversations."""

    def __init__(self, service: ConversationService) -> None:
        self._service = service

    async def CreateConversation(
        self, request: rpc.CreateConversationRequest, context: Context
    ) -> rpc.CreateConversationResponse:
        draft = conversation_draft_from_proto(request)
        key = request_key(request, "CreateConversation")
        conversation = await self._service.create(current_principal(), key, draft)
        return rpc.CreateConversationResponse(conversation=conversation.to_proto())

    async def GetConversation(
        self, request: rpc.GetConversationRequest, context: Context
    ) -> rpc.GetConversationResponse:
        caller = current_principal()
        conversation = await self._service.get(caller, any_conversation_id_from_proto(request.conversation_id))
        ids = await self._service.message_ids(caller, conversation.id) if request.include_message_ids else ()
        return rpc.GetConversationResponse(conversation=replace(conversation, message_ids=ids).to_proto())

    async def ListConversations(
        self, request: rpc.ListConversationsRequest, context: Context
    ) -> rpc.ListConversationsResponse:
        order = enum_from_proto(ConversationOrder, request.order_by, "order_by")
        query = page_query(request, default_ascending=False)
        filter_ = conversation_filter_from_proto(request)
        found = await self._service.list(current_principal(), filter_, order, query)
        page = bounded(query, found.map(Conversation.to_proto))
        return rpc.ListConversationsResponse(conversations=page.items, next_page_token=next_page_token(query, page))

    async def UpdateConversation(
        self, request: rpc.UpdateConversationRequest, context: Context
    ) -> rpc.UpdateConversationResponse:
        conversation_id, changes = conversation_update_from_proto(request)
        key = request_key(request, "UpdateConversation")
        conversation = await self._service.update(current_principal(), key, conversation_id, changes)
        return rpc.UpdateConversationResponse(conversation=conversation.to_proto())

    async def DeleteConversation(
        self, request: rpc.DeleteConversationRequest, context: Context
    ) -> rpc.DeleteConversationResponse:
        key = request_key(request, "DeleteConversation")
        await self._service.delete(current_principal(), key, any_conversation_id_from_proto(request.conversation_id))
        return rpc.DeleteConversationResponse()

    async def ForkConversation(
        self, request: rpc.ForkConversationRequest, context: Context
    ) -> rpc.ForkConversationResponse:
        source_id = any_conversation_id_from_proto(request.conversation_id)
        until = optional_field(request, "until_message_id")
        if until is not None:
            require_id(until, "message", "until_message_id")
        conversation = await self._service.fork(
            current_principal(),
            request_key(request, "ForkConversation"),
            source_id,
            until,
            optional_field(request, "summary"),
            enum_from_proto(OnBusy, request.on_busy, "on_busy"),
        )
        return rpc.ForkConversationResponse(conversation=conversation.to_proto())
