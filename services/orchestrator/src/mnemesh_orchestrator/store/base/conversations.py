"""The store of conversations."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.conversations import (
    Conversation,
    ConversationFilter,
    ConversationOrder,
    ConversationOrigin,
    UnfinishedConversation,
)


class ConversationStore(Protocol):
    """Conversations. AgentStore creates and deletes the default conversation with its agent.

    Example:
        >>> conversation_id, repeated = await conversations.begin_creation(key, conversation, ConversationOrigin())
        >>> await conversations.activate(conversation, None)
        >>> (await conversations.get(conversation.organization_id, conversation_id)).id == conversation_id
        True
    """

    async def begin_creation(
        self, key: RequestKey | None, conversation: Conversation, origin: ConversationOrigin
    ) -> tuple[str, bool]:
        """Stores a CREATING conversation.

        Returns:
            The id of the conversation, and whether the request is a repeat. A repeat, and a request with the key of an
            existing conversation of the agent, store nothing and return the first id.

        Raises:
            NotFound: The agent is not ACTIVE, or the conversation to fork does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def unfinished(self, conversation_id: str | None = None) -> tuple[UnfinishedConversation, ...]:
        """Returns all CREATING and DELETING conversations, oldest first, or the one with the id."""
        ...

    async def activate(self, conversation: Conversation, last_message_at: datetime | None) -> None:
        """Stores a CREATING conversation as ACTIVE. Has no effect if it has another state."""
        ...

    async def abandon(self, conversation_id: str, key: RequestKey | None) -> bool:
        """Marks a CREATING conversation DELETING and deletes the idempotency key of its creation.

        Returns False, and changes nothing, if the conversation has another state.
        """
        ...

    async def get(self, organization_id: str, conversation_id: str) -> Conversation:
        """Returns an ACTIVE conversation of an ACTIVE agent.

        Raises:
            NotFound: The conversation does not exist or has another state.
        """
        ...

    async def list(
        self, organization_id: str, filter_: ConversationFilter, order_by: ConversationOrder, page: PageQuery
    ) -> Page[Conversation]:
        """Returns a page of ACTIVE conversations. In the order of LAST_MESSAGE_AT, those without messages come last."""
        ...

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        conversation_id: str,
        change: Callable[[Conversation], Conversation],
    ) -> Conversation:
        """Applies a pure function to the record of a conversation, stores the result, and returns it.

        A repeat under the same key does not apply the function. If the function raises, nothing is stored.

        Raises:
            NotFound: The conversation does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def begin_deletion(
        self, key: RequestKey | None, organization_id: str, conversation_id: str
    ) -> Conversation | None:
        """Marks a conversation DELETING and returns it, or None if it is deleted already.

        A repeat returns the conversation again until it is removed.

        Raises:
            NotFound: The conversation does not exist.
            FailedPrecondition: It is the default conversation of its agent.
            ConversationBusy: A run of the conversation has not ended, or other work holds its lease.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def remove(self, conversation_id: str) -> None:
        """Deletes the row of a DELETING conversation. Has no effect if it has another state."""
        ...
