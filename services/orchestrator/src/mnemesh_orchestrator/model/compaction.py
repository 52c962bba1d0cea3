"""The result of a compaction: the new window and its figures."""

from dataclasses import dataclass

from mnemesh_types.messages import Message

from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.models import ModelSettings


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Figures of a compaction.

    Token counts are estimates of the whole request; message counts include the system message.
    """

    summary: str
    summary_message_id: str | None
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """A smaller window that can replace the one at `base_version`.

    `message_ids` is the whole new window in order: the system message, the summary, and the messages that stay.
    `system_text` is the re-rendered system message. `after_step` is true if the compaction followed a step, and false
    if it made room for one. `commits` are memories that recall stores with the new window.
    """

    base_version: int
    message_ids: tuple[str, ...]
    summary: Message
    system_text: str
    result: CompactionResult
    after_step: bool = False
    commits: tuple[EpisodeCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of compaction. None takes the default of the compaction mode."""

    mode: str = "sliding_window"
    model: str | None = None
    model_settings: ModelSettings | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool | None = None
    clip_chars: int | None = None
    sliding_window_percentage: float | None = None
    trigger_ratio: float | None = None
    memory_scope: str | None = None
