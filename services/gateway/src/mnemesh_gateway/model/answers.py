"""The answer of an agent, as the events that a client sees."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


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
