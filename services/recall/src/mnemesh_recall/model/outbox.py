"""The keys of the collections in the outbox of the vector index."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = "messages"
"""Subjects are the ids of messages; groups are the ids of erased agents."""
MEMORIES: Final = "memories"
"""Subjects are the ids of episodes and facts."""
