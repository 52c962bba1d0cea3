"""The RPCs of TraceService: decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh.recall.v1 import traces_service_pb2_grpc
from mnemesh_kit.paging import next_page_token
from mnemesh_kit.principal import current_principal

from mnemesh_recall.rpc.convert import trace_requests as requests
from mnemesh_recall.rpc.convert import traces as convert
from mnemesh_recall.usecases.traces import TraceService

Call = Any
"""gRPC's context of a call; no RPC here needs it."""


class TracesServicer(traces_service_pb2_grpc.TraceServiceServicer):
    """Answers all of TraceService."""

    def __init__(self, service: TraceService) -> None:
        self._service = service

    async def ListTurns(self, request: rpc.ListTurnsRequest, context: Call) -> rpc.ListTurnsResponse:
        """A page of turns."""
        query = requests.page(request)
        page = await self._service.list_turns(_organization(), requests.turn_filter(request), query)
        return rpc.ListTurnsResponse(
            turns=[convert.turn_out(turn) for turn in page.items], next_page_token=next_page_token(query, page)
        )

    async def ListToolInteractions(
        self, request: rpc.ListToolInteractionsRequest, context: Call
    ) -> rpc.ListToolInteractionsResponse:
        """A page of tool calls with their results."""
        query = requests.page(request)
        page = await self._service.list_interactions(_organization(), requests.interaction_filter(request), query)
        return rpc.ListToolInteractionsResponse(
            tool_interactions=[convert.interaction_out(interaction) for interaction in page.items],
            next_page_token=next_page_token(query, page),
        )

    async def ExportTraces(
        self, request: rpc.ExportTracesRequest, context: Call
    ) -> AsyncIterator[rpc.ExportTracesResponse]:
        """All that is asked for, record by record."""
        async for record in self._service.export(_organization(), requests.export(request)):
            yield rpc.ExportTracesResponse(record=convert.record_out(record))

    async def ImportTraces(
        self, request_iterator: AsyncIterator[rpc.ImportTracesRequest], context: Call
    ) -> rpc.ImportTracesResponse:
        """Stores what the agent does not have, all or none."""
        wanted, key = await requests.received(request_iterator)
        done = await self._service.import_records(_organization(), wanted, key)
        return rpc.ImportTracesResponse(
            imported_traces=done.traces,
            imported_episodes=done.episodes,
            imported_facts=done.facts,
            skipped_records=done.skipped,
            created_turns=done.turns,
        )


def _organization() -> str:
    return current_principal().organization_id
