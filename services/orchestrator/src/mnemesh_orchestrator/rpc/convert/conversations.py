"""Conversations of agents."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mnemesh.agents.v1 import conversations_pb2 as pb
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_types.agents import ModelSettings

from mnemesh_orchestrator.model.conversations import (
    ConversationDraft,
    ConversationFilter,
    ConversationOrder,
)
from mnemesh_orchestrator.rpc.convert.fields import (
    any_conversation_id_from_proto,
    enum_from_proto,
    optional_field,
    present_fields,
)

_ORDER_FROM_PROTO: Final = {
    rpc.CONVERSATION_ORDER_BY_UNSPECIFIED: ConversationOrder.CREATED_AT,
    rpc.CONVERSATION_ORDER_BY_CREATE_TIME: ConversationOrder.CREATED_AT,
    rpc.CONVERSATION_ORDER_BY_UPDATE_TIME: ConversationOrder.UPDATED_AT,
    rpc.CONVERSATION_ORDER_BY_LAST_MESSAGE_TIME: ConversationOrder.LAST_MESSAGE_AT,
}


_READERS: Final[Mapping[str, Callable[[pb.Conversation], Any]]] = {
    "summary": lambda message: optional_field(message, "summary"),
    "description": lambda message: optional_field(message, "description"),
    "archived": lambda message: message.archived,
    "model": lambda message: optional_field(message, "model"),
    "model_settings": lambda message: (
        ModelSettings.from_proto(message.model_settings) if message.HasField("model_settings") else None
    ),
}
"""The paths of an update mask, and the values that they read. An absent field clears its value."""


def conversation_draft_from_proto(request: rpc.CreateConversationRequest) -> ConversationDraft:
    """Returns the draft of a conversation. Raises InvalidArgument if the id of the agent is malformed."""
    message = request.conversation
    return ConversationDraft(
        require_id(message.agent_id, "agent", "conversation.agent_id"),
        **{path: read(message) for path, read in _READERS.items()},
        isolated_block_labels=tuple(dict.fromkeys(message.isolated_block_labels)),
        key=optional_field(message, "key"),
        create_missing_blocks=request.create_missing_blocks,
    )


def conversation_update_from_proto(request: rpc.UpdateConversationRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the conversation, and the new values by the field names of `Conversation`.

    Raises:
        InvalidArgument: The id is malformed, the mask is empty, or it names a field that cannot be updated.
    """
    conversation_id = any_conversation_id_from_proto(request.conversation.id, "conversation.id")
    paths = request.update_mask.paths
    if not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    for path in paths:
        if path not in _READERS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    return conversation_id, {path: _READERS[path](request.conversation) for path in paths}


def conversation_filter_from_proto(request: rpc.ListConversationsRequest) -> ConversationFilter:
    """Returns the filter of a list of conversations. Raises InvalidArgument if the id of the agent is malformed."""
    values = present_fields(request, "agent_id", "archived", "summary_search")
    if "agent_id" in values:
        require_id(values["agent_id"], "agent", "agent_id")
    return ConversationFilter(**values)


def conversation_order_from_proto(value: rpc.ConversationOrderBy.ValueType) -> ConversationOrder:
    """Returns the sort key of a list. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDER_FROM_PROTO, value, "order_by")
