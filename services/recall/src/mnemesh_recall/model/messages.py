"""Writes and filters of messages. The message itself is `mnemesh_types.messages.Message`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """Messages to store together. If `conversation_id` is set, they are also appended to its context window."""

    agent_id: str
    conversation_id: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The sequence ids of the stored messages, in order, and the new version of the window, if one was extended."""

    sequence_ids: tuple[int, ...]
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """The conditions of a list of messages. A condition that is None or empty does not apply."""

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
    after_sequence_id: int | None = None
    """Exclusive. Sequence ids are those of one agent."""
    until_sequence_id: int | None = None
    """Inclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentErasure:
    """The number of rows that the erasure of an agent deleted."""

    messages: int
    contexts: int
    episodes: int = 0
    facts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderErasure:
    """The number of rows that one batch of the erasure of a sender deleted, and whether there are more."""

    messages: int = 0
    episodes: int = 0
    facts: int = 0
    remaining: bool = False


def default_conversation_id(agent_id: str) -> str:
    """Returns the id of the agent's default conversation, which agent-level calls use."""
    return derive_id("conv", agent_id)


def has_same_content(stored: Message, given: Message) -> bool:
    """Returns whether a message that is stored again under its id has the content of the stored one.

    Times, sequence ids and the conversation do not count. A turn id counts only if `given` has one, because recall
    assigns the turn otherwise.
    """
    comparable = replace(
        stored,
        created_at=given.created_at,
        conversation_id=given.conversation_id,
        turn_id=stored.turn_id if given.turn_id is not None else None,
    )
    return comparable == given and stored.agent_id == given.agent_id
