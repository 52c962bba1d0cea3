"""The use cases of turns and traces."""

from collections.abc import AsyncIterator

from mnemesh_kit.call_context import Principal
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_types.recall import Turn

from mnemesh_recall.model.search import require_page
from mnemesh_recall.model.trace_requests import (
    ImportResult,
    InteractionFilter,
    Record,
    TraceExport,
    TraceImport,
    TurnFilter,
    require_export,
    require_import,
    require_interaction_filter,
    require_turn_filter,
)
from mnemesh_recall.model.traces import ToolInteraction
from mnemesh_recall.store.traces import TraceStore


class TraceService:
    """Turns and traces. Every method refuses invalid arguments with InvalidArgument.

    See TraceStore for the semantics and the other errors.
    """

    def __init__(self, store: TraceStore, indexer: Indexer) -> None:
        self._store = store
        self._indexer = indexer

    async def list_turns(self, caller: Principal, filter_: TurnFilter, page: PageQuery) -> Page[Turn]:
        require_page(page)
        require_turn_filter(filter_)
        return await self._store.list_turns(caller.organization_id, filter_, page)

    async def list_interactions(
        self, caller: Principal, filter_: InteractionFilter, page: PageQuery
    ) -> Page[ToolInteraction]:
        require_page(page)
        require_interaction_filter(filter_)
        return await self._store.list_interactions(caller.organization_id, filter_, page)

    async def export(self, caller: Principal, export: TraceExport) -> AsyncIterator[Record]:
        require_export(export)
        async for batch in self._store.export(caller.organization_id, export):
            for record in batch:
                yield record

    async def import_records(self, caller: Principal, request: TraceImport, key: RequestKey | None) -> ImportResult:
        """Stores the records that the agent does not have, all or none."""
        require_import(request)
        result = await self._store.import_records(caller.organization_id, request, key)
        self._indexer.notify()
        return result
