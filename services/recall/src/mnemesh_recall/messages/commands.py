"""What callers ask of recall: the writes, the filters of lists, the bounds of searches, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from mnemesh_recall.messages.model import Context, Message, Role

if TYPE_CHECKING:
    from mnemesh_recall.episodes.commands import EpisodeCommit


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
    context: Context | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Messages to store, at the end of a window where a conversation is named."""

    agent_id: str
    conversation_id: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The numbers that the messages of a batch have, and the window's version where one was named."""

    sequence_ids: tuple[int, ...]
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages a list shows; what is None or empty does not narrow it."""

    agent_ids: tuple[str, ...] = ()
    conversation_ids: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    run_id: str | None = None
    step_id: str | None = None
    group_id: str | None = None
    turn_id: str | None = None
    otid: str | None = None
    include_err: bool = False
    tool_call_id: str | None = None
    text: str | None = None
    from_time: datetime | None = None
    """Inclusive."""
    until_time: datetime | None = None
    """Inclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """Where a search looks."""

    organization_id: str
    agent_id: str | None = None
    conversation_id: str | None = None
    roles: tuple[Role, ...] = ()
    from_time: datetime | None = None
    """Inclusive."""
    before_time: datetime | None = None
    """Exclusive."""
    exclude_ids: tuple[str, ...] = ()


class SearchMode(StrEnum):
    """Which lists a search draws from."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSearch:
    """What to look for, and where."""

    query: str
    mode: SearchMode
    limit: int
    scope: SearchScope


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHit:
    """A message that was found; ranks count from 1. `mode` is None in a list of the newest."""

    message: Message
    text: str
    score: float = 0.0
    vector_rank: int | None = None
    text_rank: int | None = None
    mode: SearchMode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What the erasure of an agent took away."""

    messages: int
    contexts: int


class NewsKind(StrEnum):
    """What an outbox row is about."""

    MESSAGE = "message"
    MEMORY = "memory"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """News for the vector index: a message, an episode or a fact, or all of an agent, may differ from what it holds."""

    row_id: int
    kind: NewsKind
    subject_id: str
    created_at: datetime
