"""The input and the output of the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class BlockProperties:
    """What a tool can read of a memory block besides its value."""

    description: str | None = None
    limit: int | None = None
    """The maximum length of the value in characters."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as a tool sees it in `agent_state`."""

    agent_id: str
    name: str
    blocks: Mapping[str, str]
    """The values of the blocks by label. The tool can change them."""
    properties: Mapping[str, BlockProperties] = field(default_factory=dict)
    """The properties of blocks by label."""

    def to_json(self) -> dict[str, Any]:
        """Returns the agent as the runner reads it."""
        properties = {label: asdict(found) for label, found in self.properties.items()}
        return {"id": self.agent_id, "name": self.name, "blocks": dict(self.blocks), "properties": properties}


class Language(Enum):
    """The language of a source."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a function in a source, or one program."""

    source: str
    """In JavaScript and TypeScript, the function of a tool is exported as `inside.node.EXPORT`, and the value of a
    program is its default export."""
    function: str
    """The function; for a program the name that its errors show."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further environment variables, which override the others. Their values are removed from the outcome."""
    agent: AgentView | None = None
    content: Path | None = None
    """A file whose bytes a function in Python receives as its parameter `content`. The task cannot reach the file."""
    language: Language = Language.PYTHON
    parameters: tuple[str, ...] = ()
    """The parameters in their order, which JavaScript and TypeScript need."""
    takes_object: bool = False
    """The function in JavaScript or TypeScript has one parameter, which is the object of all arguments."""
    definitions: Mapping[str, Any] = field(default_factory=dict)
    """JSON schemas of types that a source in Python can name without defining them, by the name of the type."""
    is_program: bool = False
    """The source is executed from its beginning to its end. The result is the value of its last expression."""
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The functions that a program can call outside, with the names of their parameters."""

    def to_json(self) -> bytes:
        """Returns the task as the runner reads it: one line of JSON. The bytes of `content` follow it."""
        return (
            json.dumps(
                {
                    "source": self.source,
                    "name": self.function,
                    "arguments": dict(self.arguments),
                    "environment": {**self.environment, **self.secrets},
                    "agent": None if self.agent is None else self.agent.to_json(),
                    "has_content": self.content is not None,
                    "language": self.language.value,
                    "parameters": self.parameters,
                    "takes_object": self.takes_object,
                    "definitions": dict(self.definitions),
                    "is_program": self.is_program,
                    "tools": dict(self.tools),
                }
            ).encode()
            + b"\n"
        )


class OutcomeStatus(Enum):
    """The way in which a task ended."""

    SUCCESS = "success"
    ERROR = "error"
    """The tool raised an exception, or ended without a readable result."""
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    """The tool reached its limit of processor time or memory, or a signal killed it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output of a task. Its texts contain no NUL characters and no lone surrogates."""

    status: OutcomeStatus
    text: str
    """The returned value as text, or the error."""
    stdout: str
    stderr: str
    duration: float
    """The duration in seconds, with the start of the process."""
    chars: int = 0
    """The length of the returned text before the sandbox cut it."""
    changed_blocks: Mapping[str, str] = field(default_factory=dict)
    images: tuple[tuple[str, bytes], ...] = ()
    """The media type and the content of each image that the tool returned."""


def clean(text: str) -> str:
    """Returns `text` with NUL characters and lone surrogates replaced, as `mnemesh_kit.text.storable` does."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
