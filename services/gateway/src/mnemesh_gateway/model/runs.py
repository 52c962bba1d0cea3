"""Runs of the orchestrator, as far as the gateway follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from mnemesh_gateway.model.answers import ToolCall, Usage


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
