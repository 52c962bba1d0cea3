"""Agents, as models of OpenAI's API."""

from __future__ import annotations

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
