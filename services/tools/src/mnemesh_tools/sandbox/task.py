"""What the sandbox runs and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentView:
    """What a tool sees of its agent as `agent_state`."""

    agent_id: str
    name: str
    blocks: Mapping[str, str]
    """Label to value; the tool may change the values."""


@dataclass(frozen=True, slots=True)
class Task:
    """One call of one function of a source."""

    source: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    agent: AgentView | None = None

    def to_json(self) -> bytes:
        """The task as the runner reads it."""
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
    """How a run ended."""

    SUCCESS = "success"
    ERROR = "error"
    """The tool raised, or ended without a result that can be read."""
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    """A bound of CPU or memory was reached."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task. All text is free of NUL and of lone surrogates."""

    status: OutcomeStatus
    text: str
    """The returned value as text, or the error in words."""
    stdout: str
    stderr: str
    duration: float
    """Seconds, the start of the process included."""
    chars: int = 0
    """The length of the returned text before the sandbox's own bound."""
    changed_blocks: Mapping[str, str] = field(default_factory=dict)


def clean(text: str) -> str:
    """`text` with NUL and lone surrogates replaced, so that every store and wire can carry it."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
