"""The retention policy: messages older than it go, unless a window shows them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
from mnemesh_kit.clock import Clock

from mnemesh_recall.store.base import MessageStore
from mnemesh_recall.vectors.indexer import Indexer

BATCH: Final = 100
"""A sweep writes in short transactions: nobody's step waits for it."""

_log = structlog.get_logger("mnemesh.recall.retention")


class Retention:
    """Deletes what is older than so many days; 0 keeps everything."""

    def __init__(self, store: MessageStore, indexer: Indexer, clock: Clock, days: float) -> None:
        self._store = store
        self._indexer = indexer
        self._clock = clock
        self._days = days

    async def sweep(self) -> int:
        """Deletes what has outlived the policy; returns how many messages."""
        if self._days <= 0:
            return 0
        before = self._clock.now() - timedelta(days=self._days)
        total = 0
        while gone := await self._store.delete_outlived(before, BATCH):
            total += gone
        if total:
            _log.info("messages outlived the retention policy", messages=total, days=self._days)
            self._indexer.wake()
        return total
