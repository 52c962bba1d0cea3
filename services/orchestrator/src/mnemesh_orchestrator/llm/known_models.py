"""The table of known models: context windows and longest answers. This is data; settings can override each window."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model, or the family of all models whose names start with `name`. `is_listed` offers it in lists of models."""

    name: str
    context_window: int
    max_output_tokens: int | None = None
    is_listed: bool = False


UNKNOWN_OFFICIAL_WINDOW: Final = 128_000
UNKNOWN_COMPATIBLE_WINDOW: Final = 32_000
UNKNOWN_ANTHROPIC_WINDOW: Final = 200_000
REHEARSAL_WINDOW: Final = 128_000

OPENAI: Final = (
    KnownModel("gpt-6", 400_000),
    KnownModel("gpt-6-luna", 400_000, is_listed=True),
    KnownModel("gpt-6.1-sol", 400_000, is_listed=True),
    KnownModel("gpt-6.1-terra", 400_000, is_listed=True),
    KnownModel("gpt-5", 400_000, is_listed=True),
    KnownModel("gpt-5-mini", 400_000, is_listed=True),
    KnownModel("gpt-5-nano", 400_000, is_listed=True),
    KnownModel("gpt-5.2", 400_000, is_listed=True),
    KnownModel("gpt-5.5", 400_000, is_listed=True),
    KnownModel("gpt-5-chat", 128_000),
    KnownModel("gpt-5.1-chat", 128_000),
    KnownModel("gpt-5.2-chat", 128_000),
    KnownModel("gpt-5.3-chat", 128_000),
    KnownModel("gpt-4.1", 1_047_576, is_listed=True),
    KnownModel("gpt-4.1-mini", 1_047_576, is_listed=True),
    KnownModel("gpt-4.1-nano", 1_047_576, is_listed=True),
    KnownModel("gpt-4o", 128_000, is_listed=True),
    KnownModel("gpt-4o-mini", 128_000, is_listed=True),
    KnownModel("chatgpt-4o", 128_000),
    KnownModel("gpt-4-turbo", 128_000),
    KnownModel("gpt-4-1106", 128_000),
    KnownModel("gpt-4-0125", 128_000),
    KnownModel("gpt-4-32k", 32_768),
    KnownModel("gpt-4", 8_192),
    KnownModel("gpt-3.5-turbo", 16_385),
    KnownModel("o1", 200_000),
    KnownModel("o1-mini", 128_000),
    KnownModel("o1-preview", 128_000),
    KnownModel("o3", 200_000, is_listed=True),
    KnownModel("o3-mini", 200_000, is_listed=True),
    KnownModel("o4-mini", 200_000, is_listed=True),
)

ANTHROPIC: Final = (
    KnownModel("claude-", 200_000, 32_000),
    KnownModel("claude-3", 200_000, 4_096),
    KnownModel("claude-3-5", 200_000, 8_192),
    KnownModel("claude-3-7", 200_000, 32_000),
    KnownModel("claude-haiku-4-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-sonnet-4-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-opus-4-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-sonnet-4-6", 200_000, 32_000, is_listed=True),
    KnownModel("claude-opus-4-8", 200_000, 32_000, is_listed=True),
    KnownModel("claude-haiku-5-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-sonnet-5-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-opus-5-5", 200_000, 32_000, is_listed=True),
)


def known_model(table: tuple[KnownModel, ...], name: str) -> KnownModel | None:
    """Returns the entry with the longest name that `name` starts with."""
    candidates = [entry for entry in table if name.startswith(entry.name)]
    return max(candidates, key=lambda entry: len(entry.name), default=None)
