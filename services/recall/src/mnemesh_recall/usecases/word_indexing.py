"""The words of messages that commits of steps stored: they are indexed soon after."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog
from mnemesh_kit.background import with_pause
from mnemesh_kit.errors import MnemeshError

from mnemesh_recall.store.base import MessageStore

GATHER_SECONDS: Final = 0.2
"""The delay after a commit, so that the messages of several commits are indexed together."""
POLL_SECONDS: Final = 5.0
"""The longest time that messages wait whose replica stopped before it indexed them."""

_log = structlog.get_logger("mnemesh.recall.words")


class WordIndexing:
    """Indexes the words of new messages. A search first indexes those that it may find, so that it misses none."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._committed = asyncio.Event()

    def notify(self) -> None:
        """Notes that a step was committed."""
        self._committed.set()

    async def run(self) -> None:
        """Indexes messages until it is cancelled."""
        while True:
            self._committed.clear()
            await self.index_all()
            with suppress(TimeoutError):
                # asyncio.wait_for loses a cancellation that arrives together with the event.
                async with asyncio.timeout(POLL_SECONDS):
                    await self._committed.wait()
            await asyncio.sleep(GATHER_SECONDS)

    async def index_all(self) -> None:
        """Indexes all messages that wait now. A failure is logged, and they wait longer."""
        try:
            while await with_pause(self._store.index_some_words):
                pass
        except MnemeshError as error:
            _log.warning("messages_not_indexed", error=error.message)
        except Exception:
            _log.exception("messages_not_indexed")
