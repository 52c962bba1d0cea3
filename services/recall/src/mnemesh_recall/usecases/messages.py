"""The use cases of messages and context windows, and the deletion of messages beyond the retention period."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.server import with_pause
from mnemesh_kit.time import Clock
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_types.messages import Message
from mnemesh_types.recall import ContextWindowIds

from mnemesh_recall.model.contexts import (
    ContextFork,
    ContextReplacement,
    ContextWindow,
    NewContext,
    StepCommit,
    StepResult,
    require_update,
    valid_batch,
    valid_context,
    valid_fork,
    valid_replacement,
    valid_step,
)
from mnemesh_recall.model.messages import (
    AgentErasure,
    AppendResult,
    MessageBatch,
    MessageFilter,
    SenderErasure,
    require_name,
)
from mnemesh_recall.model.search import (
    MessageHits,
    MessageSearch,
    require_ids,
    require_message_filter,
    require_page,
    require_search,
)
from mnemesh_recall.model.writers import require_appendable
from mnemesh_recall.store.messages import MessageStore
from mnemesh_recall.usecases.message_search import MessageFinder, with_surroundings

GATHER_SECONDS: Final = 0.2
"""The delay after a commit, so that the messages of several commits are indexed together."""
POLL_SECONDS: Final = 5.0
"""The time after which messages are indexed that another replica committed and did not index, because it stopped."""

_log = structlog.get_logger("mnemesh.recall.words")


class WordIndexing:
    """Indexes the words of new messages. A search first indexes those that it may find, so that it misses none."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._agents: set[str] = set()
        self._committed = asyncio.Event()

    def notify(self, agent_id: str) -> None:
        """Notes that a step of an agent was committed."""
        self._agents.add(agent_id)
        self._committed.set()

    async def run(self) -> None:
        """Indexes messages until it is cancelled: those of this process, and those that others left."""
        polled = self._clock.monotonic()
        await self.index_all()
        while True:
            with suppress(TimeoutError):
                # asyncio.wait_for loses a cancellation that arrives together with the event.
                async with asyncio.timeout(POLL_SECONDS):
                    await self._committed.wait()
                await asyncio.sleep(GATHER_SECONDS)
            agents, self._agents = self._agents, set()
            self._committed.clear()
            if agents:
                await self.index_all(sorted(agents))
            if (now := self._clock.monotonic()) - polled >= POLL_SECONDS:
                polled = now
                await self.index_all(before=self._clock.now() - timedelta(seconds=POLL_SECONDS))

    async def index_all(self, agent_ids: Sequence[str] | None = None, *, before: datetime | None = None) -> None:
        """Indexes all messages that wait now; see MessageStore.index_some_words. After a failure they wait longer."""
        try:
            while await with_pause(lambda: self._store.index_some_words(agent_ids, before=before)):
                pass
        except MnemeshError as error:
            _log.warning("messages_not_indexed", error=error.message)
        except Exception:
            _log.exception("messages_not_indexed")


class WordRebuild:
    """Indexes the words of all messages and memories again when their analysis has changed, once.

    A search of an agent first indexes the messages of this agent. Until all are indexed, other searches find what they
    can in the earlier words, and are `degraded`.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def mark(self) -> None:
        """Notes what is outdated, before the service serves."""
        if waiting := await self._store.mark_outdated_words():
            _log.info("word_rebuild_waits", agents_and_memories=waiting)

    async def run(self) -> None:
        """Indexes everything that is outdated, and leaves half of the time to calls."""
        began = time.monotonic()
        total = 0
        while (count := await with_pause(self._store.rebuild_some_words)) is not None:
            total += count
        if total:
            await self._merge()
            _log.info("word_rebuild_finished", records=total, seconds=round(time.monotonic() - began, 1))

    async def _merge(self) -> None:
        """Merges what the rebuild wrote: it replaces each document, which makes searches read several times as much."""
        has_more = await with_pause(lambda: self._store.merge_some_words(first=True))
        while has_more:
            has_more = await with_pause(lambda: self._store.merge_some_words(first=False))


class MessageService:
    """Messages and context windows. Every method refuses invalid arguments with InvalidArgument.

    See MessageStore for the semantics and the other errors.
    """

    def __init__(self, store: MessageStore, finder: MessageFinder, indexer: Indexer, words: WordIndexing) -> None:
        self._store = store
        self._finder = finder
        self._indexer = indexer
        self._words = words

    async def create_context(self, caller: Principal, new: NewContext, key: RequestKey | None) -> ContextWindow:
        """Creates a window. Its first message, and no other, must be of role SYSTEM."""
        window = await self._store.create_context(caller.organization_id, valid_context(new), key)
        self._indexer.notify()
        return window

    async def get_context(self, caller: Principal, conversation_id: str, if_version: int | None) -> ContextWindow:
        """Returns a window, without its messages if its version is `if_version`."""
        require_id(conversation_id, "conv", "conversation_id")
        return await self._store.get_context(caller.organization_id, conversation_id, if_version)

    async def get_context_ids(self, caller: Principal, conversation_ids: Sequence[str]) -> tuple[ContextWindowIds, ...]:
        require_ids(conversation_ids, "conv", "conversation_ids")
        return await self._store.get_context_ids(caller.organization_id, conversation_ids)

    async def commit_step(self, caller: Principal, step: StepCommit) -> StepResult:
        """Commits a step. It must contain a message or a system text."""
        result = await self._store.commit_step(caller.organization_id, valid_step(step))
        self._indexer.notify()
        self._words.notify(step.agent_id)
        return result

    async def replace_context(
        self, caller: Principal, new: ContextReplacement, key: RequestKey | None
    ) -> ContextWindow:
        """Replaces a window, and commits the memories of the messages that leave it."""
        window = await self._store.replace_context(caller.organization_id, valid_replacement(new), key)
        self._indexer.notify()
        return window

    async def fork_context(self, caller: Principal, fork: ContextFork, key: RequestKey | None) -> ContextWindow:
        """Creates a window over the messages of another one."""
        return await self._store.fork_context(caller.organization_id, valid_fork(fork), key)

    async def delete_context(
        self, caller: Principal, conversation_id: str, key: RequestKey | None, *, delete_messages: bool
    ) -> int:
        """Deletes a window. Returns the number of messages that were deleted with it on request."""
        require_id(conversation_id, "conv", "conversation_id")
        deleted = await self._store.delete_context(
            caller.organization_id, conversation_id, key, delete_messages=delete_messages
        )
        self._indexer.notify()
        return deleted

    async def append_messages(self, caller: Principal, batch: MessageBatch, key: RequestKey | None) -> AppendResult:
        """Stores messages, all or none."""
        require_appendable(caller, batch.messages)
        result = await self._store.append_messages(caller.organization_id, valid_batch(batch), key)
        self._indexer.notify()
        return result

    async def get_messages(self, caller: Principal, ids: Sequence[str]) -> tuple[Message, ...]:
        """Returns messages by id, in the order of `ids`."""
        require_ids(ids, "message", "message_ids")
        return await self._store.get_messages(caller.organization_id, ids)

    async def list_messages(self, caller: Principal, filter_: MessageFilter, page: PageQuery) -> Page[Message]:
        require_page(page, "message")
        require_message_filter(filter_)
        return await self._store.list_messages(caller.organization_id, filter_, page)

    async def update_message(
        self, caller: Principal, changed: Message, fields: frozenset[str], key: RequestKey | None
    ) -> Message:
        """Sets the named fields of a stored message."""
        require_update(changed, fields)
        message = await self._store.update_message(caller.organization_id, changed, fields, key)
        self._indexer.notify()
        return message

    async def delete_message(self, caller: Principal, message_id: str, key: RequestKey | None) -> None:
        """Deletes a message from every window and index."""
        require_id(message_id, "message", "message_id")
        await self._store.delete_message(caller.organization_id, message_id, key)
        self._indexer.notify()

    async def search_messages(self, caller: Principal, search: MessageSearch) -> MessageHits:
        """Returns the best hits of a search after its offset, best first."""
        require_search(search)
        found = await self._finder.search(caller, search)
        hits = await with_surroundings(self._store, caller, search, found.hits[search.offset :])
        return replace(found, hits=hits)

    async def erase_agent(self, caller: Principal, agent_id: str, key: RequestKey | None) -> AgentErasure:
        """Deletes everything of an agent, and refuses later writes for it."""
        require_id(agent_id, "agent", "agent_id")
        erasure = await self._store.erase_agent(caller.organization_id, agent_id, key)
        self._indexer.notify()
        return erasure

    async def erase_sender(self, caller: Principal, sender_id: str) -> SenderErasure:
        """Deletes a bounded number of a sender's messages, with what derives from them."""
        require_name(sender_id, "sender_id", min_chars=1)
        erasure = await self._store.erase_sender(caller.organization_id, sender_id)
        self._indexer.notify()
        return erasure


BATCH: Final = 100
"""A sweep writes in short transactions, so that it does not delay commits."""


class Retention:
    """Deletes messages that are older than `days` and that no window shows. 0 keeps everything."""

    def __init__(self, store: MessageStore, indexer: Indexer, clock: Clock, days: float) -> None:
        self._store = store
        self._indexer = indexer
        self._clock = clock
        self._days = days

    async def sweep(self) -> int:
        """Deletes the expired messages of all organizations. Returns their number."""
        if self._days <= 0:
            return 0
        before = self._clock.now() - timedelta(days=self._days)
        total = 0
        while deleted := await self._store.delete_expired(before, BATCH):
            total += deleted
        if total:
            _log.info("expired_messages_deleted", messages=total, days=self._days)
            self._indexer.notify()
        return total
