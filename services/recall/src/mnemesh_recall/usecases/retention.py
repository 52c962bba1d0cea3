"""The deletion of messages that are older than the retention period."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_retrieval.indexing.indexer import Indexer

from mnemesh_recall.store.base import MessageStore

BATCH: Final = 100
"""A sweep writes in short transactions, so that it does not delay commits."""

_log = structlog.get_logger("mnemesh.recall.retention")


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
