"""The recall service: messages and context windows."""

from collections.abc import Sequence
from typing import Protocol

from mnemesh_types.messages import Message

from mnemesh_orchestrator.model.context_window import CommitOutcome, ContextWindow, MessageHit, StepCommit
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.erasure import Erased


class RecallPort(Protocol):
    """Recall memory and context windows (the recall room)."""

    async def create_context(
        self, request_id: str, agent_id: str, conversation_id: str, messages: Sequence[Message]
    ) -> ContextWindow:
        """Makes a conversation's window, the system message first."""
        ...

    async def fork_context(
        self,
        request_id: str,
        agent_id: str,
        source_conversation_id: str,
        conversation_id: str,
        system: Message,
        until_message_id: str | None = None,
    ) -> ContextWindow:
        """Makes a window that shares another's messages, all or up to one, under a system message of its own."""
        ...

    async def delete_context(self, request_id: str, conversation_id: str) -> None:
        """Deletes a window with its system message; the other messages stay in recall. Raises NotFound."""
        ...

    async def get_context(self, conversation_id: str, if_version: int | None = None) -> ContextWindow | None:
        """The window, or None where `if_version` still holds."""
        ...

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The ids of the stored messages in windows, by conversation; at most 1000, unknown ones left out."""
        ...

    async def commit_step(self, commit: StepCommit) -> CommitOutcome:
        """Commits a step in one transaction; idempotent by its step id. Raises LEASE_LOST, STEP_CONFLICT."""
        ...

    async def replace_context(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        base_version: int,
        message_ids: Sequence[str],
        new_messages: Sequence[Message] = (),
        system_text: str | None = None,
        run_id: str | None = None,
        epoch: int | None = None,
        memories: Sequence[EpisodeCommit] = (),
    ) -> ContextWindow:
        """Replaces the window, and keeps memories with it, all or nothing; without run and epoch as the owner.

        Raises WINDOW_MOVED, LEASE_LOST, and where a fact that a memory supersedes or confirms is closed by now
        FACT_CLOSED (metadata: fact_id).
        """
        ...

    async def append(self, request_id: str, agent_id: str, messages: Sequence[Message]) -> None:
        """Stores messages outside of any window."""
        ...

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        roles: Sequence[str] = (),
        limit: int = 5,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
    ) -> tuple[MessageHit, ...]:
        """Hybrid search of the agent's messages, best first."""
        ...

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """Forgets the agent's windows and messages."""
        ...
