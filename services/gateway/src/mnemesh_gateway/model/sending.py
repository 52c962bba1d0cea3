"""The messages to the orchestrator: inputs with ids, and the configuration of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mnemesh_gateway.model.chat import Choice, Format, Part, Settings, Tool


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
