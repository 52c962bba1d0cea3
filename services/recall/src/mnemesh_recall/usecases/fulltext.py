"""The words of the full-text index after a change of their analysis."""

from __future__ import annotations

import time

import structlog
from mnemesh_kit.background import with_pause

from mnemesh_recall.store.base import MessageStore

_log = structlog.get_logger("mnemesh.recall.fulltext")


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
