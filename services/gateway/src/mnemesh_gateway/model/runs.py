"""Runs: what is sent, the events of the turn, and the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from mnemesh_gateway.model.chat import Choice, Format, Part, Settings, Tool


@dataclass(frozen=True, slots=True)
class Begun:
    """The run is stored: from here on, the turn takes place whatever happens to the connection."""

    run_id: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """The next part of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoned:
    """The next part of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that waits for a decision or for the client's result. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Called:
    """Calls that the client is to run."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a run; None if the provider reported none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Finish(StrEnum):
    """Why an answer ends, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the answer."""

    reason: Finish
    usage: Usage


@dataclass(frozen=True, slots=True)
class Idle:
    """The run continues, and there is nothing to show."""


AnswerEvent: TypeAlias = Begun | Said | Reasoned | Called | Finished | Idle


@dataclass(frozen=True, slots=True)
class Accepted:
    """The run is stored. `replayed` is whether an earlier request started it."""

    run_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text while the model writes it. `offset` is its first character's index in the text."""

    part: str
    offset: int
    text: str
    is_reasoning: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete text."""

    part: str
    text: str
    is_reasoning: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run stops until someone decides about these calls."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The run failed."""

    reason: str
    message: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run has stopped. `reason` is a name such as `end_turn`; `is_cancelled` whether it was cancelled."""

    reason: str
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """The tokens of the run; the last event."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class KeptAlive:
    """The run continues."""


RunEvent: TypeAlias = Accepted | Piece | Whole | Waiting | Failed | Stopped | Used | KeptAlive


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A stored run."""

    id: str
    is_ended: bool
    has_failed: bool
    """It failed or was cancelled."""
    ended_at: datetime | None
    is_waiting: bool = False
    """It stopped to wait for the results of tool calls."""
    agent_id: str = ""
    conversation_id: str = ""
    client_tools: tuple[str, ...] = ()
    """The names of the tools that its client runs."""
    otids: tuple[str, ...] = ()
    """The client's ids of its input messages."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Input:
    """A message of the user. The same `otid` is the same message: the orchestrator stores it once."""

    content: tuple[Part, ...]
    otid: str
    name: str | None = None
    path: str = ""
    """Its path in the client's request, for errors; "" if the gateway wrote it."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The configuration of a run."""

    tools: tuple[Tool, ...] = ()
    choice: Choice = field(default_factory=Choice)
    settings: Settings = field(default_factory=Settings)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    format: Format | None = None
    stream_tokens: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


def otid_of(conversation_id: str, anchor: str, position: str) -> str:
    """Returns the id of a message at a position of the client's history.

    Args:
        conversation_id: The conversation.
        anchor: What precedes the message besides the client's history; "" if the history suffices.
        position: The hash of the client's messages up to this one.
    """
    digest = hashlib.sha256(f"{conversation_id}\x1f{anchor}\x1f{position}".encode()).hexdigest()
    return f"gateway-{digest[:40]}"
