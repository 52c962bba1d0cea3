"""The update of the vector index from the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Final

import structlog
from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.errors import Unavailable
from mnemesh_retrieval.errors import EmbedderError, RetrievalError
from mnemesh_types.messages import Message

from mnemesh_recall.model.outbox import ChangeKind, PendingChanges
from mnemesh_recall.store.base import OutboxStore
from mnemesh_recall.vectors.memories import MemoryIndexer
from mnemesh_recall.vectors.messages import MessageVectors

BATCH: Final = 256
"""The number of changes that are read and settled together."""
EMBED_BATCH: Final = 32
"""Embedding holds the interpreter lock: small batches keep concurrent calls fast."""
POLL_SECONDS: Final = 2.0
"""The longest time that a change by another replica waits."""
GATHER_SECONDS: Final = 0.2
"""The delay after a notification, so that the changes of several steps are embedded together."""
RETRY_SECONDS: Final = 5.0
LEASE_DURATION: Final = timedelta(seconds=30)
"""The time after which another instance replaces one that crashed."""

_log = structlog.get_logger("mnemesh.recall.indexer")


class Indexer:
    """Applies the changes of the outbox to the vector index, in order, and then deletes them from the outbox.

    Every update is idempotent: after a crash, at most one batch is repeated.

    If several instances update one index, each has its own `instance_id`, and only the one with the lease applies
    changes. Without an `instance_id`, this process is the only one.
    """

    def __init__(
        self,
        outbox: OutboxStore,
        vectors: MessageVectors,
        clock: Clock | None = None,
        instance_id: str | None = None,
        *,
        memories: MemoryIndexer | None = None,
    ) -> None:
        """Creates an indexer of messages, and of episodes and facts if `memories` is given."""
        self._outbox = outbox
        self._vectors = vectors
        self._memories = memories
        self._clock = clock or SystemClock()
        self._instance_id = instance_id
        self._oldest: datetime | None = None
        self._notified = asyncio.Event()

    async def open(self) -> None:
        """Opens the index. If it is new, or of another embedder, all messages are added to the outbox."""
        if not await self._vectors.exists():
            count = await self._outbox.enqueue_all_messages()
            _log.info("vector_index_rebuild_started", messages=count, embedder=self._vectors.embedder.handle)
        await self._vectors.open()
        if self._memories is not None:
            await self._memories.open()

    def lag_seconds(self) -> float:
        """Returns the age of the oldest known change that is not in the index; 0 if there is none."""
        oldest = self._oldest
        return 0.0 if oldest is None else max(0.0, (self._clock.now() - oldest).total_seconds())

    def notify(self) -> None:
        """Wakes the indexer, because the outbox has new changes."""
        self._notified.set()

    async def run(self) -> None:
        """Applies changes until it is cancelled."""
        while True:
            try:
                await self.catch_up()
                wait = POLL_SECONDS
            except (RetrievalError, Unavailable) as error:
                _log.warning("vector_index_update_failed", error=str(error), retry_in=RETRY_SECONDS)
                wait = RETRY_SECONDS
            with suppress(TimeoutError):
                # asyncio.wait_for loses a cancellation that arrives together with the event.
                async with asyncio.timeout(wait):
                    await self._notified.wait()
                await asyncio.sleep(GATHER_SECONDS)
            self._notified.clear()

    async def catch_up(self) -> int:
        """Applies all pending changes, unless another instance has the lease. Returns the number of changes."""
        if not await self._read(1):
            return 0
        applied = 0
        async with self._lease() as has_lease:
            while has_lease and (changes := await self._read(BATCH)):
                await self._apply(changes)
                applied += len(changes.rows)
                if not await self._outbox.settle(changes.rows, self._instance_id):
                    break
        return applied

    async def drain(self) -> int:
        """Waits until this or another instance has emptied the outbox. Returns the number of changes applied here."""
        applied = 0
        while True:
            applied += await self.catch_up()
            if not await self._read(1):
                return applied
            await asyncio.sleep(GATHER_SECONDS)

    async def _read(self, limit: int) -> PendingChanges | None:
        changes = await self._outbox.get_pending(limit)
        self._oldest = changes.rows[0].created_at if changes.rows else None
        return changes if changes.rows else None

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[bool]:
        """Holds the lease during the block. The value is false if another instance has it."""
        if self._instance_id is None:
            yield True
            return
        if not await self._outbox.acquire_lease(self._instance_id, LEASE_DURATION):
            yield False
            return
        renewal = asyncio.create_task(self._renew(self._instance_id))
        try:
            yield True
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            await self._outbox.release_lease(self._instance_id)

    async def _renew(self, instance_id: str) -> None:
        while True:
            await asyncio.sleep(LEASE_DURATION.total_seconds() / 3)
            await self._outbox.acquire_lease(instance_id, LEASE_DURATION)

    async def _apply(self, changes: PendingChanges) -> None:
        message_ids = _subjects(changes, ChangeKind.MESSAGE)
        stored = [changes.messages[id_] for id_ in message_ids if id_ in changes.messages]
        for start in range(0, len(stored), EMBED_BATCH):
            await self._put(stored[start : start + EMBED_BATCH])
        await self._vectors.remove([id_ for id_ in message_ids if id_ not in changes.messages])
        for agent_id in _subjects(changes, ChangeKind.AGENT):
            await self._vectors.remove_agent(agent_id)
        if self._memories is not None:
            await self._memories.update(_subjects(changes, ChangeKind.MEMORY))

    async def _put(self, messages: Sequence[tuple[str, Message]]) -> None:
        try:
            await self._vectors.put(messages)
        except EmbedderError as error:
            # A text that the embedder refuses permanently must not block the others.
            if len(messages) <= 1:
                _log.warning("message_not_embedded", message_ids=[m.id for _, m in messages], error=str(error))
                return
            for message in messages:
                await self._put([message])


def _subjects(changes: PendingChanges, kind: ChangeKind) -> list[str]:
    """Returns the subjects of the changes of one kind, each once, in order."""
    return list(dict.fromkeys(row.subject_id for row in changes.rows if row.kind is kind))
