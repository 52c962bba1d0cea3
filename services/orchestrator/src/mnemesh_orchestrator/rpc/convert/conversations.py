"""Conversations between the domain and the contract, checked field by field."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mnemesh.agents.v1 import conversations_pb2 as pb
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_orchestrator.model.conversations import Conversation, ConversationDraft, ConversationFilter
from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_orchestrator.rpc.convert.settings import present, require_plain, settings_from_proto, settings_to_proto

_LONGEST_TEXT: Final = 100_000
_MOST_LABELS: Final = 100


def conversation_to_proto(conversation: Conversation, message_ids: tuple[str, ...] = ()) -> pb.Conversation:
    """A conversation."""
    settings, last = conversation.model_settings, conversation.last_message_at
    return pb.Conversation(
        id=conversation.id,
        agent_id=conversation.agent_id,
        is_default=conversation.is_default,
        summary=conversation.summary,
        description=conversation.description,
        archived=conversation.archived,
        model=conversation.model,
        model_settings=None if settings is None else settings_to_proto(settings),
        forked_from_id=conversation.forked_from_id,
        isolated_block_labels=conversation.isolated_block_labels,
        isolated_block_ids=conversation.isolated_block_ids,
        message_ids=message_ids,
        last_message_time=None if last is None else timestamp_to_proto(last),
        create_time=timestamp_to_proto(conversation.created_at),
        update_time=timestamp_to_proto(conversation.updated_at),
    )


def draft_from_proto(given: pb.Conversation) -> ConversationDraft:
    """What a client asks for.

    Raises:
        InvalidArgument: naming the field.
    """
    agent_id = require_id(given.agent_id, "agent", "conversation.agent_id")
    labels = tuple(dict.fromkeys(given.isolated_block_labels))
    if len(labels) > _MOST_LABELS:
        raise InvalidArgument(f"At most {_MOST_LABELS} labels at once.", field="conversation.isolated_block_labels")
    for label in labels:
        require_plain(label, "conversation.isolated_block_labels")
    changes = {path: read(given) for path, read in CHANGES.items()}
    return ConversationDraft(agent_id, **changes, isolated_block_labels=labels)


def summary_from_proto(request: rpc.ForkConversationRequest) -> str | None:
    """The summary of a fork, or None for its source's."""
    return _text(request, "summary", "summary")


def filter_from_proto(request: rpc.ListConversationsRequest) -> ConversationFilter:
    """Which conversations a list looks at.

    Raises:
        InvalidArgument: naming the field.
    """
    given = present(request, "agent_id", "archived", "summary_search")
    if "agent_id" in given:
        require_id(given["agent_id"], "agent", "agent_id")
    require_plain(given.get("summary_search", ""), "summary_search")
    return ConversationFilter(**given)


def _text(given: Any, name: str, field: str) -> str | None:
    if not given.HasField(name):
        return None
    value = require_plain(getattr(given, name), field)
    if len(value) > _LONGEST_TEXT:
        raise InvalidArgument(f"{field} is longer than {_LONGEST_TEXT} characters.", field=field)
    return value


def _settings(given: pb.Conversation) -> ModelSettings | None:
    if not given.HasField("model_settings"):
        return None
    return settings_from_proto(given.model_settings, "conversation.model_settings")


CHANGES: Final[Mapping[str, Callable[[pb.Conversation], Any]]] = {
    "summary": lambda given: _text(given, "summary", "conversation.summary"),
    "description": lambda given: _text(given, "description", "conversation.description"),
    "archived": lambda given: given.archived,
    "model": lambda given: _text(given, "model", "conversation.model"),
    "model_settings": _settings,
}
"""Paths of an update mask, and what they read; an absent field clears."""
