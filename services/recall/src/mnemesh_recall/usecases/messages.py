"""The use cases of recall: rules that need no database, then the store, then the news for the vector index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_recall.model.contexts import (
    ContextWindow,
    ContextWindowIds,
    Fork,
    NewContext,
    Replacement,
    StepCommit,
    StepResult,
)
from mnemesh_recall.model.message_rules import require_message, require_messages, require_text
from mnemesh_recall.model.messages import Appended, Batch, Erasure, Message, MessageFilter, Role
from mnemesh_recall.model.search import MessageHit, MessageSearch
from mnemesh_recall.store.base import MessageStore
from mnemesh_recall.usecases.message_search import MessageFinder
from mnemesh_recall.vectors.indexer import Indexer

MAX_WINDOW: Final = 10_000
UPDATABLE: Final = frozenset({"content", "tool_calls", "tool_returns", "name", "is_err"})


class MessageService:
    """Messages and windows of one organization after another."""

    def __init__(self, store: MessageStore, finder: MessageFinder, indexer: Indexer) -> None:
        self._store = store
        self._finder = finder
        self._indexer = indexer

    async def create_context(self, organization_id: str, new: NewContext, key: RequestKey | None) -> ContextWindow:
        """Makes a window. InvalidArgument unless its first message, and no other, is of role SYSTEM."""
        require_messages(new.messages, "messages", at_least=1)
        _require_distinct(new.messages, "messages")
        if new.messages[0].role is not Role.SYSTEM:
            raise InvalidArgument("The first message must be of role SYSTEM.", field="messages[0].role")
        context = await self._store.create_context(organization_id, new, key)
        self._indexer.wake()
        return context

    async def get_context(self, organization_id: str, conversation_id: str, if_version: int | None) -> ContextWindow:
        """A window, without messages where its version is `if_version`."""
        return await self._store.get_context(organization_id, conversation_id, if_version)

    async def get_window_ids(
        self, organization_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ContextWindowIds, ...]:
        """Which messages windows hold."""
        return await self._store.get_window_ids(organization_id, conversation_ids)

    async def commit_step(self, organization_id: str, step: StepCommit) -> StepResult:
        """Commits a step; see MessageStore.commit_step."""
        require_messages(step.messages, "messages")
        require_messages(step.hidden_messages, "hidden_messages")
        if not step.messages and not step.hidden_messages and step.system_text is None:
            raise InvalidArgument("messages must not be empty where nothing else is committed.", field="messages")
        _require_distinct((*step.messages, *step.hidden_messages), "messages")
        if step.system_text is not None:
            require_text(step.system_text, "system_text")
        result = await self._store.commit_step(organization_id, step)
        self._indexer.wake()
        return result

    async def replace_context(self, organization_id: str, new: Replacement, key: RequestKey | None) -> ContextWindow:
        """Replaces a window; see MessageStore.replace_context."""
        require_messages(new.new_messages, "new_messages")
        _require_distinct(new.new_messages, "new_messages")
        if not new.message_ids:
            raise InvalidArgument("message_ids must not be empty.", field="message_ids")
        if len(new.message_ids) > MAX_WINDOW:
            raise InvalidArgument(f"message_ids must be at most {MAX_WINDOW}.", field="message_ids")
        if len(set(new.message_ids)) < len(new.message_ids):
            raise InvalidArgument("message_ids must not repeat.", field="message_ids")
        if new.system_text is not None:
            require_text(new.system_text, "system_text")
        context = await self._store.replace_context(organization_id, new, key)
        self._indexer.wake()
        return context

    async def fork_context(self, organization_id: str, fork: Fork, key: RequestKey | None) -> ContextWindow:
        """Makes a window over the messages of another."""
        require_message(fork.system_message, "system_message")
        if fork.system_message.role is not Role.SYSTEM:
            raise InvalidArgument("system_message must be of role SYSTEM.", field="system_message.role")
        return await self._store.fork_context(organization_id, fork, key)

    async def delete_context(
        self, organization_id: str, conversation_id: str, key: RequestKey | None, *, delete_messages: bool
    ) -> int:
        """Deletes a window; returns how many messages went with it where that was asked for."""
        gone = await self._store.delete_context(organization_id, conversation_id, key, delete_messages=delete_messages)
        self._indexer.wake()
        return gone

    async def append_messages(self, organization_id: str, batch: Batch, key: RequestKey | None) -> Appended:
        """Stores messages, all or none."""
        require_messages(batch.messages, "messages", at_least=1)
        _require_distinct(batch.messages, "messages")
        appended = await self._store.append_messages(organization_id, batch, key)
        self._indexer.wake()
        return appended

    async def get_messages(self, organization_id: str, ids: Sequence[str]) -> tuple[Message, ...]:
        """Messages by id, in the order asked for."""
        return await self._store.get_messages(organization_id, ids)

    async def list_messages(self, organization_id: str, wanted: MessageFilter, page: PageQuery) -> Page[Message]:
        """A page of messages."""
        return await self._store.list_messages(organization_id, wanted, page)

    async def update_message(
        self, organization_id: str, changed: Message, fields: frozenset[str], key: RequestKey | None
    ) -> Message:
        """Changes a stored message."""
        if not fields or not fields <= UPDATABLE:
            raise InvalidArgument(f"update_mask must name some of {', '.join(sorted(UPDATABLE))}.", field="update_mask")
        require_message(changed, "message")
        message = await self._store.update_message(organization_id, changed, fields, key)
        self._indexer.wake()
        return message

    async def delete_message(self, organization_id: str, message_id: str, key: RequestKey | None) -> None:
        """Deletes a message everywhere."""
        await self._store.delete_message(organization_id, message_id, key)
        self._indexer.wake()

    async def search_messages(self, wanted: MessageSearch) -> list[MessageHit]:
        """Searches messages."""
        return await self._finder.search(wanted)

    async def erase_agent(self, organization_id: str, agent_id: str, key: RequestKey | None) -> Erasure:
        """Forgets an agent."""
        gone = await self._store.erase_agent(organization_id, agent_id, key)
        self._indexer.wake()
        return gone


def _require_distinct(messages: Sequence[Message], field: str) -> None:
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if message.id in seen:
            raise InvalidArgument(f"{field}[{index}].id is given twice.", field=f"{field}[{index}].id")
        seen.add(message.id)
