"""The input and the output of the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as a tool sees it in `agent_state`."""

    agent_id: str
    name: str
    blocks: Mapping[str, str]
    """The values of the blocks by label. The tool can change them."""


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a function in a source."""

    source: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    agent: AgentView | None = None

    def to_json(self) -> bytes:
        """Returns the task as the runner reads it."""
        agent = self.agent
        return json.dumps(
            {
                "source": self.source,
                "name": self.function,
                "arguments": dict(self.arguments),
                "environment": dict(self.environment),
                "agent": agent and {"id": agent.agent_id, "name": agent.name, "blocks": dict(agent.blocks)},
            }
        ).encode()


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


def clean(text: str) -> str:
    """Returns `text` with NUL characters and lone surrogates replaced, as `mnemesh_kit.text.storable` does."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
