"""Checks that an index and its records have the same history: neither was replaced by an older copy."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import structlog

from mnemesh_retrieval.errors import VectorIndexError
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.indexing.ports import Outbox
from mnemesh_retrieval.indexing.records import Change

_log = structlog.get_logger("mnemesh.retrieval.indexer")


class History:
    """Names each state that the index has flushed, in the index and with the records."""

    def __init__(self, outbox: Outbox, index: NearestIndex) -> None:
        self._outbox = outbox
        self._index = index
        self._last: str | None = None

    async def is_shared(self) -> bool:
        """Returns false if the index is of another history than the records.

        Then a point may be of a state that its record never had, or no longer has.
        """
        self._last = await self._outbox.get_mark()
        if self._index.mark is None or self._last is None:
            return True
        try:
            names = await asyncio.to_thread(self._index.mark.names)
            if self._last in names or not await self._index.collections():
                return True
        except (OSError, VectorIndexError) as error:
            _log.warning("vector_index_mark_not_read", error=str(error))
            return True
        _log.error("vector_index_of_another_history", index=next(iter(names), None), records=self._last)
        return False

    async def adopt(self) -> None:
        """Gives the index the name of the records. All that it has is of their history."""
        if self._index.mark is not None and self._last is not None:
            try:
                await asyncio.to_thread(self._index.mark.store, self._last, None)
            except OSError as error:
                _log.warning("vector_index_mark_not_stored", error=str(error))

    async def settle(self, changes: Sequence[Change], instance_id: str | None) -> None:
        """Settles changes that the index has flushed. Raises VectorIndexError if the index cannot be named."""
        mark = self._index.mark
        if mark is None:
            await self._outbox.settle(changes, instance_id)
            return
        name = uuid.uuid4().hex
        try:
            await asyncio.to_thread(mark.store, name, self._last)
        except OSError as error:
            raise VectorIndexError(f"the mark of the index cannot be stored: {error}") from error
        await self._outbox.settle(changes, instance_id, name)
        self._last = name
