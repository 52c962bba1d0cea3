"""Conversations of agents."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from mnemesh_kit.ids import derive_id
from mnemesh_kit.text import require_optional_text, require_texts

from mnemesh_orchestrator.model.models import ModelSettings, require_valid_settings

_MAX_TEXT: Final = 100_000
_MAX_LABELS: Final = 100
_MAX_KEY: Final = 512


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of an agent with its own context window in recall. Its model and settings override the agent's."""

    id: str
    organization_id: str
    agent_id: str
    is_default: bool
    created_at: datetime
    updated_at: datetime
    summary: str | None = None
    description: str | None = None
    archived: bool = False
    model: str | None = None
    model_settings: ModelSettings | None = None
    forked_from_id: str | None = None
    created_by_id: str = ""
    last_message_at: datetime | None = None
    isolated_block_labels: tuple[str, ...] = ()
    """Labels of isolated blocks: copies that replace the agent's blocks in this conversation."""
    isolated_block_ids: tuple[str, ...] = ()
    key: str | None = None
    """The client's name for the conversation, unique among those of the agent."""

    @property
    def holder_id(self) -> str | None:
        """The id of the conversation if it has isolated blocks, otherwise None."""
        return self.id if self.isolated_block_labels else None


class ConversationState(StrEnum):
    """The state of a conversation. Only ACTIVE conversations are visible to clients."""

    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ConversationOrigin:
    """The record of a creation in progress: what it forks, and the idempotency key to release if it fails."""

    until_message_id: str | None = None
    method: str | None = None
    request_id: str | None = None
    create_missing_blocks: bool = False


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """The conditions of a list; a conversation must meet all that are set.

    Only ACTIVE conversations of ACTIVE agents are found.
    """

    agent_id: str | None = None
    archived: bool | None = None
    summary_search: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedConversation:
    """A CREATING or DELETING conversation. `origin` is set while it is CREATING."""

    conversation: Conversation
    origin: ConversationOrigin | None


@dataclass(frozen=True, slots=True)
class ConversationDraft:
    """A request to create a conversation."""

    agent_id: str
    summary: str | None = None
    description: str | None = None
    archived: bool = False
    model: str | None = None
    model_settings: ModelSettings | None = None
    isolated_block_labels: tuple[str, ...] = ()
    key: str | None = None
    create_missing_blocks: bool = False
    """Gives the conversation empty blocks of its own for isolated labels that the agent does not have."""


class ConversationOrder(StrEnum):
    """The keys that lists of conversations can be sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
    LAST_MESSAGE_AT = "last_message_at"


def default_conversation_id(agent_id: str) -> str:
    """Returns the id of the default conversation of an agent."""
    return derive_id("conv", agent_id)


def require_valid_conversation(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns new values of the fields of a conversation if each follows its rule.

    Raises:
        InvalidArgument: One does not. Metadata: field, such as `conversation.summary`.
    """
    for name in ("summary", "description", "model"):
        require_optional_text(values.get(name), f"conversation.{name}", max_chars=_MAX_TEXT)
    require_optional_text(values.get("key"), "conversation.key", min_chars=1, max_chars=_MAX_KEY)
    if (settings := values.get("model_settings")) is not None:
        require_valid_settings(settings, "conversation.model_settings")
    require_texts(values.get("isolated_block_labels", ()), "conversation.isolated_block_labels", max_items=_MAX_LABELS)
    return values


def require_summary(summary: str | None) -> str | None:
    """Returns the summary of a fork; None keeps that of its source. Raises InvalidArgument."""
    return require_optional_text(summary, "summary", max_chars=_MAX_TEXT)
