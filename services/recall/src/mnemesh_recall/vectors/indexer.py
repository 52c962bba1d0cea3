"""Keeps the vector index up to date from the store's outbox."""

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

from mnemesh_recall.model.messages import Message
from mnemesh_recall.model.outbox import ChangeKind, OutboxRow
from mnemesh_recall.store.base import MessageStore
from mnemesh_recall.vectors.memories import MemoryIndexer
from mnemesh_recall.vectors.messages import MessageVectors

BATCH: Final = 256
"""So much news is read and settled at once."""
WRITTEN_AT_ONCE: Final = 32
"""What embeds and writes them holds the interpreter: small portions keep the calls of others short."""
POLL_SECONDS: Final = 2.0
"""How long news of another replica may wait."""
GATHER_SECONDS: Final = 0.2
"""Steps that follow each other are embedded together, and out of the way of the commit that made them."""
RETRY_SECONDS: Final = 5.0
HOLD: Final = timedelta(seconds=30)
"""How long a process that died keeps the others from its work."""
_log = structlog.get_logger("mnemesh.recall.indexer")


class Indexer:
    """Brings what the outbox names into the vector index, in order, and forgets a row when the index has it.

    Everything it does can be done again: after a crash it repeats at most one batch.

    Where several processes fill one index, each is a `holder` of its own name, and one at a time does the work: so
    the news of a message arrive in order. Without a holder it is alone.
    """

    def __init__(
        self,
        store: MessageStore,
        vectors: MessageVectors,
        clock: Clock | None = None,
        holder: str | None = None,
        *,
        memories: MemoryIndexer | None = None,
    ) -> None:
        """An indexer of messages, and of `memories` where they are given."""
        self._store = store
        self._vectors = vectors
        self._memories = memories
        self._clock = clock or SystemClock()
        self._holder = holder
        self._oldest: datetime | None = None
        self._news = asyncio.Event()

    async def open(self) -> None:
        """Opens the index. One that is new, or of another embedder, is to be filled from all that is stored."""
        if not await self._vectors.exists():
            noted = await self._store.note_all()
            _log.info("building the vector index", messages=noted, embedder=self._vectors.embedder.handle)
        await self._vectors.open()
        if self._memories is not None:
            await self._memories.open()

    async def open_words(self) -> None:
        """Fills a word index that a migration has left empty."""
        if count := await self._store.rebuild_words(only_if_empty=True):
            _log.info("built the word index", messages=count)

    def lag_seconds(self) -> float:
        """The age of the oldest change that the index was seen to lack; 0 where it lacked none."""
        oldest = self._oldest
        return 0.0 if oldest is None else max(0.0, (self._clock.now() - oldest).total_seconds())

    def wake(self) -> None:
        """Says that the outbox has news."""
        self._news.set()

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            try:
                await self.catch_up()
                wait = POLL_SECONDS
            except (RetrievalError, Unavailable) as error:
                _log.warning("the vector index lags; text search goes on", error=str(error), retry_in=RETRY_SECONDS)
                wait = RETRY_SECONDS
            with suppress(TimeoutError):
                # Not wait_for: it swallows a cancellation that comes together with news, and then this never ends.
                async with asyncio.timeout(wait):
                    await self._news.wait()
                await asyncio.sleep(GATHER_SECONDS)
            self._news.clear()

    async def catch_up(self) -> int:
        """Empties the outbox, unless another holder is at it; returns how many rows were done."""
        rows, _ = await self._store.pending(1)
        self._oldest = rows[0].created_at if rows else None
        if not rows:
            return 0
        done = 0
        async with self._held() as mine:
            while mine:
                rows, found = await self._store.pending(BATCH)
                self._oldest = rows[0].created_at if rows else None
                if not rows:
                    break
                await self._apply(rows, found)
                done += len(rows)
                if not await self._store.settle(rows, self._holder):
                    break
        return done

    async def finish(self) -> int:
        """Returns when the outbox is empty, whoever emptied it; how many rows were done here."""
        done = 0
        while True:
            done += await self.catch_up()
            if self._oldest is None or not (await self._store.pending(1))[0]:
                return done
            await asyncio.sleep(GATHER_SECONDS)

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[bool]:
        """The hold on the outbox for the time of the block; false where another holder has it."""
        if self._holder is None:
            yield True
            return
        if not await self._store.hold_news(self._holder, HOLD):
            yield False
            return
        keeper = asyncio.create_task(self._keep(self._holder))
        try:
            yield True
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await self._store.let_go_of_news(self._holder)

    async def _keep(self, holder: str) -> None:
        """Keeps the hold while a batch takes its time."""
        while True:
            await asyncio.sleep(HOLD.total_seconds() / 3)
            await self._store.hold_news(holder, HOLD)

    async def _apply(self, rows: Sequence[OutboxRow], found: dict[str, tuple[str, Message]]) -> None:
        named = list(dict.fromkeys(row.subject_id for row in rows if row.kind is ChangeKind.MESSAGE))
        there = [found[id_] for id_ in named if id_ in found]
        for start in range(0, len(there), WRITTEN_AT_ONCE):
            await self._put(there[start : start + WRITTEN_AT_ONCE])
        await self._vectors.forget([id_ for id_ in named if id_ not in found])
        for agent_id in dict.fromkeys(row.subject_id for row in rows if row.kind is ChangeKind.AGENT):
            await self._vectors.forget_agent(agent_id)
        if self._memories is not None:
            memory_ids = dict.fromkeys(row.subject_id for row in rows if row.kind is ChangeKind.MEMORY)
            await self._memories.follow(list(memory_ids))

    async def _put(self, found: Sequence[tuple[str, Message]]) -> None:
        try:
            await self._vectors.put(found)
        except EmbedderError as error:
            # One text that the embedder refuses for good must not stop those behind it.
            if len(found) <= 1:
                _log.warning("a message stays without a vector", message_ids=[m.id for _, m in found], error=str(error))
                return
            for one in found:
                await self._put([one])
