"""The context window of a conversation, its commits, and the messages that a search finds."""

from dataclasses import dataclass

from mnemesh_types.messages import Message


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The context window of a conversation, system message first. Every change raises `version`."""

    conversation_id: str
    agent_id: str
    version: int
    messages: tuple[Message, ...]
    agent_message_count: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StepCommit:
    """The commit of one step to recall. `messages` enter the window in order.

    `base_version` is the version of the window that the step was built on. `system_text` is set if the system message
    is re-rendered.
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
    """The result of a commit. `window` is set if recall rebased the messages onto a window that had changed."""

    version: int
    agent_message_count: int
    replayed: bool = False
    window: ContextWindow | None = None


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message found by a search: its text without packaging, and its rank in each result list, from 1."""

    message: Message
    text: str
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None
    mode: str = "hybrid"
