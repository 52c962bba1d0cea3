"""The Protocol of the store of the word indexes of agents."""

from __future__ import annotations

from typing import Protocol


class WordSegmentStore(Protocol):
    """The segments of the word indexes of agents, and the documents that are not in them yet (the tails).

    Every call is safe at any time, also next to another process on the same database.
    """

    def changed_agents(self) -> list[str]:
        """Returns the agents whose tails may be long by changes in this process since the last call."""
        ...

    def mark_changed(self, agent_id: str) -> None:
        """Makes `changed_agents` return an agent."""
        ...

    async def long_tails(self) -> list[str]:
        """Returns the agents with long tails. Reads all tails."""
        ...

    async def move_tail(self, agent_id: str) -> int:
        """Moves some documents of a long tail to a segment. Returns their number; 0 if the tail is short."""
        ...

    async def merge(self, agent_id: str) -> bool:
        """Merges some segments of an agent if there are more than needed. Returns whether it did."""
        ...

    async def rewrite(self, agent_id: str) -> None:
        """Moves the whole tail of an agent, and removes the words of documents that do not exist any more."""
        ...

    async def agents(self) -> list[str]:
        """Returns the agents with a segment or a tail."""
        ...
