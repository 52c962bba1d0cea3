"""Compactions: their settings, and their results, a new window and its figures."""

from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_optional_text
from mnemesh_types.messages import Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.models import ModelSettings, require_handle, require_valid_settings

_MAX_PROMPT: Final = 100_000
_MAX_SCOPE: Final = 255


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Figures of a compaction.

    Token counts are estimates of the whole request; message counts include the system message. `usage` are the tokens
    that summary models used, as their providers counted them.
    """

    summary: str
    summary_message_id: str | None
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Compaction:
    """A smaller window that can replace the one at `base_version`.

    `message_ids` is the whole new window in order: the system message, the summary, and the messages that stay.
    `system_text` is the re-rendered system message. `after_step` is true if the compaction followed a step, and false
    if it came before one. `commits` are memories that recall stores with the new window.
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


def require_valid_compaction_settings(settings: CompactionSettings, field: str) -> CompactionSettings:
    """Returns `settings` if each value is in its range.

    Raises:
        InvalidArgument: A value is not. Metadata: field, such as `agent.compaction_settings.trigger_ratio`.
    """
    for name in ("sliding_window_percentage", "trigger_ratio"):
        share = getattr(settings, name)
        if share is not None and not 0 < share <= 1:
            raise InvalidArgument(f"{field}.{name} must be above 0 and at most 1.", field=f"{field}.{name}")
    if settings.clip_chars is not None and settings.clip_chars < 1:
        raise InvalidArgument(f"{field}.clip_chars must be at least 1.", field=f"{field}.clip_chars")
    if settings.model is not None:
        require_handle(settings.model, f"{field}.model")
    require_optional_text(settings.prompt, f"{field}.prompt", max_chars=_MAX_PROMPT)
    require_optional_text(settings.memory_scope, f"{field}.memory_scope", min_chars=1, max_chars=_MAX_SCOPE)
    if settings.model_settings is not None:
        require_valid_settings(settings.model_settings, f"{field}.model_settings")
    return settings
