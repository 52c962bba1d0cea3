"""Conversations of agents."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mnemesh_orchestrator.model.models import ModelSettings


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


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """Which conversations; everything that is given must hold. Only ACTIVE ones of ACTIVE agents are ever found."""

    agent_id: str | None = None
    archived: bool | None = None
    summary_search: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedConversation:
    """A conversation that is being made or unmade; `origin` is set where it is being made."""

    conversation: Conversation
    origin: ConversationOrigin | None


@dataclass(frozen=True, slots=True)
class ConversationDraft:
    """What a client asks for."""

    agent_id: str
    summary: str | None = None
    description: str | None = None
    archived: bool = False
    model: str | None = None
    model_settings: ModelSettings | None = None
    isolated_block_labels: tuple[str, ...] = ()
