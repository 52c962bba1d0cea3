"""What a compaction comes to: the window that it makes, and its figures."""

from dataclasses import dataclass

from mnemesh_types.messages import Message

from mnemesh_orchestrator.model.episodes import EpisodeCommit


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Figures of a compaction. Tokens are estimates of the whole request; messages count the system message."""

    summary: str
    summary_message_id: str | None
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """A smaller window, ready to be put in place of the one at `base_version`.

    `message_ids` are the whole new window in order: the system message, the
    summary, what stays. `system_text` is the system message rendered anew.
    `after_step` says that it followed a step rather than made room for one.
    `commits` are memories to be kept before the window is replaced.
    """

    base_version: int
    message_ids: tuple[str, ...]
    summary: Message
    system_text: str
    result: CompactionResult
    after_step: bool = False
    commits: tuple[EpisodeCommit, ...] = ()
