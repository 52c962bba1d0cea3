"""ContextWindow windows: their content, and the requests that create, extend, replace, and fork them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mnemesh_recall.model.episode_operations import EpisodeCommit
from mnemesh_recall.model.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """A conversation's window: its system message first. `messages` is None where only its version was asked for."""

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
    """Which messages a window holds, the system message first."""

    conversation_id: str
    agent_id: str
    version: int
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContext:
    """A conversation's first window: the system message, then the first messages."""

    agent_id: str
    conversation_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommit:
    """One step of a run, to be stored whole or not at all."""

    agent_id: str
    conversation_id: str
    step_id: str
    epoch: int
    base_version: int
    messages: tuple[Message, ...]
    hidden_messages: tuple[Message, ...] = ()
    system_text: str | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a commit came to; `context` is the current window where the commit was rebased onto it."""

    version: int
    rebased: bool
    replayed: bool
    sequence_ids: tuple[int, ...]
    agent_message_count: int
    context: ContextWindow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A whole new window by ids; `epoch` is None where an owner acts outside of a run.

    `memories` are kept with it.
    """

    agent_id: str
    conversation_id: str
    base_version: int
    message_ids: tuple[str, ...]
    new_messages: tuple[Message, ...] = ()
    system_text: str | None = None
    epoch: int | None = None
    memories: tuple[EpisodeCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A new window over the messages of another."""

    source_conversation_id: str
    conversation_id: str
    system_message: Message
    until_message_id: str | None = None
