"""Conversations of the orchestrator, and the blocks of overlays."""

from __future__ import annotations

from typing import Protocol

from mnemesh_gateway.model.sessions import Overlay


class ConversationsPort(Protocol):
    """Conversations with a block of their own for the overlay."""

    async def open(self, agent_id: str, key: str) -> tuple[str, str]:
        """Returns the ids of the agent's conversation with this key and of its overlay block; creates what is missing.

        Raises:
            NotFound: The agent does not exist.
        """
        ...

    async def find(self, conversation_id: str) -> tuple[str, str | None]:
        """Returns the id of the agent of a conversation, and of its overlay block if it has one. Raises NotFound."""
        ...

    async def render_system_message(self, agent_id: str, conversation_id: str) -> None:
        """Updates the system message of a conversation to show the overlay."""
        ...


class OverlaysPort(Protocol):
    """The blocks of overlays."""

    async def sha256(self, block_id: str) -> str | None:
        """Returns the hash of the instructions in a block; None if it has none. Raises NotFound."""
        ...

    async def write(self, block_id: str, overlay: Overlay, session: str) -> None:
        """Stores instructions in a block that agents cannot edit, with a limit that fits them."""
        ...
