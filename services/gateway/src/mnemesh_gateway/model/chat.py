"""A chat request: its messages, tools and settings, as far as the gateway uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Text in a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a message: its bytes with their media type, or a URL."""

    data: bytes | None = None
    media_type: str = ""
    url: str | None = None
    detail: str | None = None


Part: TypeAlias = Text | Image


@dataclass(frozen=True, slots=True)
class UserInput:
    """A message of the user that is new.

    `position` is a hash of the client's messages up to and including this one, so that the same message at the same
    point of the same history is recognised.
    """

    content: tuple[Part, ...]
    position: str
    name: str | None = None
    path: str = ""
    """Its path in the request, such as `messages[3]`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call that the client ran."""

    tool_call_id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """The new part of a request: the results of tool calls, then messages of the user."""

    tool_results: tuple[ToolResult, ...] = ()
    inputs: tuple[UserInput, ...] = ()
    has_history: bool = False
    """An answer of the assistant precedes the new messages, so that their position is unique."""
    earlier: tuple[str, ...] = ()
    """The positions of the user's messages before the last answer, the newest first."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return not self.tool_results and not self.inputs


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the client runs. `parameters` is a JSON schema as text."""

    name: str
    description: str | None
    parameters: str
    path: str = ""
    """Its path in the request, such as `tools[0].function`."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model must call: the client's tool with a name, or any tool."""

    name: str | None = None
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the model call that replace those of the agent."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A response format: `text`, `json_object`, or `json_schema` with its name and schema as text."""

    kind: str
    name: str = ""
    schema: str = ""
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for an answer of an agent."""

    model: str
    """The id or the name of the agent."""
    instructions: str | None
    """The texts of the system and developer messages, or None if there are none."""
    delta: Delta
    tools: tuple[Tool, ...] = ()
    choice: Choice = field(default_factory=Choice)
    settings: Settings = field(default_factory=Settings)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The parameters that a provider gets if its API has them."""
    ignored: tuple[str, ...] = ()
    """The parameters that have no effect."""
    format: Format | None = None
    user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The client's session, as the headers of a request name it."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that may name a session, by their names in lower case."""
    is_retry: bool = False
    """The client says that it sends the request again."""
    idempotency_key: str | None = None
    previous_run_id: str | None = None
    """The run whose conversation the request continues."""
    conversation_id: str | None = None
    """The conversation that the request continues."""
    task: str | None = None
    """The front end's own task, such as a title, that the request is for."""
