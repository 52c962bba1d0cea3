"""What clients name as a model: agents, and models of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent."""

    id: str
    name: str
    model: str
    """The handle of its language model."""
    default_conversation_id: str
    created_at: datetime
    is_partner: bool = False
    """It works for another agent while that one is not in use, and does not talk to users."""
    keeps_prompt: bool = False
    """Its system message is not updated at each step (PROMPT_POLICY_CACHE)."""


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A request of vectors."""

    model: str
    """The handle of an embedder."""
    texts: tuple[str, ...]
    dimensions: int | None = None
    """The length that the vectors must have; None for that of the embedder."""
    base64: bool = False
    """The vectors are returned as base64 of little-endian float32 numbers instead of arrays."""


@dataclass(frozen=True, slots=True)
class EmbeddedTexts:
    """The vectors of texts, in order."""

    embedder: str
    dimension: int
    vectors: Sequence[Sequence[float]]
    """One for each text, of `dimension` float32 numbers."""
    tokens: int | None = None
    """The tokens of the texts; None if the embedder does not know them."""
