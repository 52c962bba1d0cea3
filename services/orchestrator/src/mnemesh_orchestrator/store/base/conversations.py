"""The contract of what stores conversations."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.conversations import (
    Conversation,
    ConversationFilter,
    ConversationOrigin,
    UnfinishedConversation,
)


class ConversationStore(Protocol):
    """Conversations. The default one of each agent is made and unmade with it, by AgentStore."""

    async def begin_creation(
        self, key: RequestKey | None, conversation: Conversation, origin: ConversationOrigin
    ) -> tuple[str, bool]:
        """Stores a CREATING conversation; its id, and whether the request came before (then nothing is stored).

        Raises:
            NotFound: the agent is not ACTIVE, or the conversation that it forks is not there.
            RequestIdReused: with other content.
        """
        ...

    async def unfinished(self, conversation_id: str | None = None) -> tuple[UnfinishedConversation, ...]:
        """What is CREATING or DELETING, in every organization, or that one alone."""
        ...

    async def activate(self, conversation: Conversation, last_message_at: datetime | None) -> None:
        """Writes a CREATING conversation as ACTIVE; one that is not CREATING stays as it is."""
        ...

    async def abandon(self, conversation_id: str, key: RequestKey | None) -> bool:
        """Marks what is CREATING as DELETING and forgets the request that began it; False where it is not CREATING."""
        ...

    async def get(self, organization_id: str, conversation_id: str) -> Conversation:
        """An ACTIVE conversation.

        Raises:
            NotFound: it is not there, not yet, or not any more.
        """
        ...

    async def list(
        self, organization_id: str, where: ConversationFilter, order_by: str, page: PageQuery
    ) -> Page[Conversation]:
        """A page by "created_at", "updated_at" or "last_message_at" (those without messages last)."""
        ...

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        conversation_id: str,
        change: Callable[[Conversation], Conversation],
    ) -> Conversation:
        """Applies a pure function to a conversation's record and stores the result; a repeat changes nothing.

        Raises:
            NotFound
        """
        ...

    async def begin_deletion(
        self, key: RequestKey | None, organization_id: str, conversation_id: str
    ) -> Conversation | None:
        """Marks a conversation DELETING; what it is while its parts are still to be deleted, also at a repeat.

        Raises:
            NotFound
            FailedPrecondition: it is its agent's default one.
            ConversationBusy: a run is under way in it, or waits, or its turn slot is taken.
        """
        ...

    async def remove(self, conversation_id: str) -> None:
        """Removes what is DELETING."""
        ...
