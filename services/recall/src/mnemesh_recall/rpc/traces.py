"""The RPCs of TraceService."""

from collections.abc import AsyncIterator
from typing import Any

from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh.recall.v1 import traces_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.recall import Turn

from mnemesh_recall.rpc.convert import traces as convert
from mnemesh_recall.rpc.convert import traces as requests
from mnemesh_recall.usecases.traces import TraceService

Call = Any
"""The gRPC context of a call, which no RPC here uses."""


class TracesServicer(traces_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, service: TraceService) -> None:
        self._service = service

    async def ListTurns(self, request: rpc.ListTurnsRequest, context: Call) -> rpc.ListTurnsResponse:
        query = page_query(request)
        found = await self._service.list_turns(current_principal(), requests.turn_filter_from_proto(request), query)
        page = bounded(query, found.map(Turn.to_proto))
        return rpc.ListTurnsResponse(turns=page.items, next_page_token=next_page_token(query, page))

    async def ListToolInteractions(
        self, request: rpc.ListToolInteractionsRequest, context: Call
    ) -> rpc.ListToolInteractionsResponse:
        query = page_query(request)
        filter_ = requests.interaction_filter_from_proto(request)
        found = await self._service.list_interactions(current_principal(), filter_, query)
        page = bounded(query, found.map(convert.interaction_to_proto))
        return rpc.ListToolInteractionsResponse(
            tool_interactions=page.items, next_page_token=next_page_token(query, page)
        )

    async def ExportTraces(
        self, request: rpc.ExportTracesRequest, context: Call
    ) -> AsyncIterator[rpc.ExportTracesResponse]:
        async for record in self._service.export(current_principal(), requests.export_from_proto(request)):
            yield rpc.ExportTracesResponse(record=convert.record_to_proto(record))

    async def ImportTraces(
        self, request_iterator: AsyncIterator[rpc.ImportTracesRequest], context: Call
    ) -> rpc.ImportTracesResponse:
        """Stores the records that the agent does not have."""
        request, key = await requests.import_from_proto(request_iterator)
        result = await self._service.import_records(current_principal(), request, key)
        return rpc.ImportTracesResponse(
            imported_traces=result.traces,
            imported_episodes=result.episodes,
            imported_facts=result.facts,
            skipped_records=result.skipped,
            created_turns=result.turns,
        )
