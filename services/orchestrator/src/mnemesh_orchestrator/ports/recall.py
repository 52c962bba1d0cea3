"""Messages and context windows of the recall service, as the orchestrator calls it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_types.messages import Message

from mnemesh_orchestrator.model.context_window import (
    CommitOutcome,
    ContextWindow,
    MessageHits,
    MessagePage,
    MessageQuery,
    StepCommit,
)
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.erasure import Erased


class RecallPort(Protocol):
    """Recall memory and context windows."""

    async def create_context(
        self, request_id: str, agent_id: str, conversation_id: str, messages: Sequence[Message]
    ) -> ContextWindow:
        """Creates the window of a conversation, system message first."""
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
        """Creates a window with its own system message that shares the messages of another window, all or up to one."""
        ...

    async def delete_context(self, request_id: str, conversation_id: str) -> None:
        """Deletes a window and its system message. The other messages stay in recall. Raises NotFound."""
        ...

    async def get_context(self, conversation_id: str, if_version: int | None = None) -> ContextWindow | None:
        """Returns the window, or None if `if_version` is the current version."""
        ...

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the ids of the messages in at most 1000 windows, by conversation.

        Unknown conversations are left out.
        """
        ...

    async def commit_step(self, commit: StepCommit) -> CommitOutcome:
        """Commits a step in one transaction, idempotent by its step id. Raises LEASE_LOST, STEP_CONFLICT."""
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
        """Replaces the window and stores memories with it, completely or not at all.

        Without run and epoch, the owner replaces it. Raises WINDOW_MOVED, LEASE_LOST, and FACT_CLOSED (metadata:
        fact_id) if a fact that a memory supersedes or confirms was closed meanwhile.
        """
        ...

    async def append(self, request_id: str, agent_id: str, messages: Sequence[Message]) -> None:
        """Stores messages that belong to no window."""
        ...

    async def list_messages(self, query: MessageQuery) -> MessagePage:
        """Returns a page of stored messages.

        Raises INVALID_ARGUMENT, PAGE_TOKEN_INVALID, and NOT_FOUND if `after_id` or `before_id` names no message.
        """
        ...

    async def newest_sequence_id(self, agent_id: str) -> int:
        """Returns the highest sequence id of the agent's messages; 0 if it has none."""
        ...

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        further_queries: Sequence[str] = (),
        roles: Sequence[str] = (),
        speakers: Sequence[str] = (),
        limit: int = 5,
        surrounding: int = 0,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
        now: datetime | None = None,
    ) -> MessageHits:
        """Searches the agent's messages (hybrid) for one query or several.

        Args:
            agent_id: the agent.
            query: the query.
            further_queries: other queries. A message counts with its best score over all of them.
            roles: the roles of messages to find; empty for all.
            speakers: the names of speakers; empty for all.
            limit: the largest number of hits.
            surrounding: the number of messages to return before and after each hit.
            start_date: an ISO date or time from which on messages are found.
            end_date: one until which they are found, inclusive.
            time_zone: the zone of dates and of expressions of time.
            now: the time from which expressions such as "last week" in the queries are resolved.
        """
        ...

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """Erases the agent's windows, messages, episodes and facts."""
        ...

    async def erase_sender(self, sender_id: str) -> Erased:
        """Erases the messages of a sender in all agents, with what derives from them."""
        ...
