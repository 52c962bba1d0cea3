"""Conversations of agents."""

from dataclasses import replace
from typing import Any, Final

from mnemesh.agents.v1 import conversations_pb2 as pb
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_types.twin import Conversion, enum_of

from mnemesh_orchestrator.model.conversations import ConversationDraft, ConversationFilter, ConversationOrder
from mnemesh_orchestrator.rpc.convert.runs import any_conversation_id_from_proto

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
