"""Context windows: their content, and the requests that create, extend, replace and fork them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mnemesh_types.messages import Message

from mnemesh_recall.model.episode_operations import EpisodeCommit
from mnemesh_recall.model.leases import WriterLease


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """The context window of a conversation.

    `messages` starts with the system message. It is None if the caller already had this version.
    """

    conversation_id: str
    agent_id: str
    version: int
    epoch: int
    agent_message_count: int
    created_at: datetime
    updated_at: datetime
    last_message_at: datetime | None = None
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class ContextWindowIds:
    """The ids of the stored messages in a window, the system message first."""

    conversation_id: str
    agent_id: str
    version: int
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContext:
    """The first window of a conversation: the system message, followed by the first messages."""

    agent_id: str
    conversation_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommit:
    """The commit of one step of a run. All of it is stored, or nothing.

    `hidden_messages` are stored without entering the window. `system_text` replaces the text of the system message.
    """

    agent_id: str
    conversation_id: str
    step_id: str
    lease: WriterLease
    base_version: int
    messages: tuple[Message, ...]
    hidden_messages: tuple[Message, ...] = ()
    system_text: str | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step commit. `context` is the current window if the commit was rebased onto it."""

    version: int
    rebased: bool
    replayed: bool
    sequence_ids: tuple[int, ...]
    agent_message_count: int
    context: ContextWindow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReplacement:
    """A whole new window, given by message ids.

    `lease` is None for an owner that acts outside of a run. `memories` are committed in the same transaction.
    """

    agent_id: str
    conversation_id: str
    base_version: int
    message_ids: tuple[str, ...]
    new_messages: tuple[Message, ...] = ()
    system_text: str | None = None
    lease: WriterLease | None = None
    memories: tuple[EpisodeCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFork:
    """A new window over the messages of another one, up to and including `until_message_id` if it is set."""

    source_conversation_id: str
    conversation_id: str
    system_message: Message
    until_message_id: str | None = None
