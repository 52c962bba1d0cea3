"""The words of messages: indexed soon after a commit, and again after a change of the analysis."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.server import with_pause
from mnemesh_kit.time import Clock

from mnemesh_recall.store.messages import MessageStore

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
