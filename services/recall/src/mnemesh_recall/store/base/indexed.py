"""The Protocols of the records from which the vector index is derived, of all organizations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from mnemesh_types.messages import Message

from mnemesh_recall.model.episodes import MemoryText


class IndexedMessages(Protocol):
    """The messages with searchable text."""

    async def read(self, ids: Sequence[str]) -> dict[str, tuple[str, Message]]:
        """Returns those of the messages that exist, by id, each with its organization."""
        ...

    async def list_ids(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """Returns pairs of a position and an id, in the order of storing; None begins with the first message."""
        ...

    async def existing(self, ids: Sequence[str]) -> Collection[str]:
        """Returns those of the ids that exist."""
        ...

    async def count(self) -> int:
        """Returns the number of messages."""
        ...


class IndexedMemories(Protocol):
    """The episodes and facts."""

    async def read(self, ids: Sequence[str]) -> list[MemoryText]:
        """Returns the texts of those that exist."""
        ...

    async def list_ids(self, after: str | None, limit: int) -> list[str]:
        """Returns ids in order, after the id `after`; None begins with the first."""
        ...

    async def existing(self, ids: Sequence[str]) -> Collection[str]:
        """Returns those of the ids that exist."""
        ...

    async def count(self) -> int:
        """Returns the number of episodes and facts."""
        ...
