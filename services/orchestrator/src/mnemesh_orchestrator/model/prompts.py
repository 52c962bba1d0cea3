"""System prompts."""

from dataclasses import dataclass
from typing import Final

from mnemesh_kit.text import require_text

MAX_SYSTEM_PROMPT: Final = 1_000_000
"""The maximum number of characters of a system prompt."""


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A template under its key."""

    key: str
    text: str
    built_in: bool


def require_prompt_key(key: str, field: str) -> str:
    """Returns the key of a system prompt. Raises InvalidArgument if it is empty or contains a NUL character."""
    return require_text(key, field, min_chars=1)
