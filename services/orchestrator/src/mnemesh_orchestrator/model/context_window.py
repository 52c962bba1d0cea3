"""The context window of a conversation, its commits, and the messages that a search finds."""

from dataclasses import dataclass

from mnemesh_types.messages import Message


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
class StepCommit:
    """One step as it is committed to recall: `messages` enter the window in order.

    `base_version` is the window's version that the step was built on;
    `system_text` is set where the system message is rewritten.
    """

    agent_id: str
    conversation_id: str
    run_id: str
    epoch: int
    step_id: str
    base_version: int
    messages: tuple[Message, ...]
    system_text: str | None = None


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What recall made of a step: `window` is set where the append was rebased onto a moved window."""

    version: int
    agent_message_count: int
    replayed: bool = False
    window: ContextWindow | None = None


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A found message: its words without packaging, and where each list ranked it (1-based)."""

    message: Message
    text: str
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None
    mode: str = "hybrid"
