"""The full-text index at startup."""

from __future__ import annotations

import structlog

from mnemesh_recall.store.base import MessageStore

_log = structlog.get_logger("mnemesh.recall.fulltext")


async def fill_fulltext_index(store: MessageStore) -> None:
    """Rebuilds the full-text index if it is empty, as a migration leaves it."""
    if count := await store.rebuild_fulltext(only_if_empty=True):
        _log.info("fulltext_index_rebuilt", messages=count)
