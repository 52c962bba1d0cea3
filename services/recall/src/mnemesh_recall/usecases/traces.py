"""The use cases of turns and traces."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_recall.model.trace_operations import Export, Import, Imported, InteractionFilter, Record, TurnFilter
from mnemesh_recall.model.traces import ToolInteraction, Turn
from mnemesh_recall.store.base import TraceStore
from mnemesh_recall.vectors.indexer import Indexer


class TraceService:
    """Turns and traces of one organization after another; see TraceStore for what each of these does."""

    def __init__(self, store: TraceStore, indexer: Indexer) -> None:
        self._store = store
        self._indexer = indexer

    async def list_turns(self, organization_id: str, wanted: TurnFilter, page: PageQuery) -> Page[Turn]:
        """A page of turns."""
        return await self._store.list_turns(organization_id, wanted, page)

    async def list_interactions(
        self, organization_id: str, wanted: InteractionFilter, page: PageQuery
    ) -> Page[ToolInteraction]:
        """A page of tool calls with their results."""
        return await self._store.list_interactions(organization_id, wanted, page)

    async def export(self, organization_id: str, wanted: Export) -> AsyncIterator[Record]:
        """All that is asked for, record by record."""
        async for batch in self._store.export(organization_id, wanted):
            for record in batch:
                yield record

    async def import_records(self, organization_id: str, wanted: Import, key: RequestKey | None) -> Imported:
        """Stores what the agent does not have, all or none."""
        done = await self._store.import_records(organization_id, wanted, key)
        self._indexer.wake()
        return done
