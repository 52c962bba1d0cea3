"""What the other tiers hold, in the orchestrator's own words."""

from dataclasses import dataclass
from datetime import datetime

from mnemesh_types.messages import Message


@dataclass(frozen=True, slots=True)
class Block:
    """A block of core memory as the prompt shows it. `limit` counts characters."""

    id: str
    label: str
    value: str
    limit: int
    description: str | None = None
    read_only: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """All blocks of an agent in their order, under one revision."""

    agent_id: str
    revision: int
    blocks: tuple[Block, ...] = ()
    updated_at: datetime | None = None

    def block(self, label: str) -> Block | None:
        """The block under a label, or None."""
        return next((block for block in self.blocks if block.label == label), None)


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """A conversation's context window: the system message first. `version` counts its changes."""

    conversation_id: str
    agent_id: str
    version: int
    messages: tuple[Message, ...]
    agent_message_count: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ArchivalSummary:
    """How much an agent keeps in its archives."""

    revision: int = 0
    passage_count: int = 0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A found message: its words without packaging, and where each list ranked it (1-based)."""

    message: Message
    text: str
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None
    mode: str = "hybrid"


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A found passage."""

    id: str
    text: str
    tags: tuple[str, ...]
    created_at: datetime
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A stored tool that a turn may call. `json_schema` is {"name", "description", "parameters"} as text.

    One that is `builtin` is listed by the tools room and run here.
    """

    id: str
    name: str
    json_schema: str
    return_char_limit: int = 50_000
    requires_approval: bool = False
    parallel: bool = False
    idempotent: bool = False
    revision: int = 0
    builtin: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What running a tool came to."""

    ok: bool
    text: str
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What recall made of a step: `window` is set where the append was rebased onto a moved window."""

    version: int
    agent_message_count: int
    replayed: bool = False
    window: ContextWindow | None = None
