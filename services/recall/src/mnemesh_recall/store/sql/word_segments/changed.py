"""The agents whose documents this process has changed, so that their tails are looked at."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

LEAST_CHANGES: Final = 16
"""The number of changed documents of an agent after which its tail is looked at."""


class ChangedAgents:
    """Counts changed documents by agent, and long tails that searches find.

    SQLite's readers are threads.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, agent_id: str, count: int) -> None:
        """Notes changed documents of an agent."""
        with self._lock:
            self._counts[agent_id] += count

    def take(self) -> list[str]:
        """Returns the agents with at least LEAST_CHANGES changes, and forgets these."""
        if not self._counts:
            return []
        with self._lock:
            found = [agent_id for agent_id, count in self._counts.items() if count >= LEAST_CHANGES]
            for agent_id in found:
                del self._counts[agent_id]
        return found
