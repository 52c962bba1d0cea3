"""Turns, tool interactions and raw traces: an agent's life as a view of its messages, and its way out and in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, Literal

from mnemesh.recall.v1 import traces_pb2, traces_service_pb2, traces_service_pb2_grpc
from mnemesh_kit.channels import Channel
from mnemesh_kit.ids import new_id

from mnemesh_client.paging import Order, every, sort_order

RecordKind = Literal["raw_trace", "episode", "fact", "snapshot"]
InteractionStatusName = Literal["pending", "success", "error"]

_TRANSFER_SECONDS: Final = 600.0


class TracesClient:
    """`e.traces`. Errors: AlreadyExists (metadata: record_id) and InvalidArgument (metadata: record) of imports."""

    def __init__(self, channel: Channel) -> None:
        self.stub = traces_service_pb2_grpc.TraceServiceStub(channel)

    def turns(
        self,
        agent_id: str,
        *,
        conversation_id: str | None = None,
        turn_ids: Sequence[str] = (),
        compacted: bool | None = None,
        include_traces: bool = False,
        after_id: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[traces_pb2.Turn]:
        """Turns of an agent by their index, oldest first unless `order` is "desc"."""
        request = traces_service_pb2.ListTurnsRequest(
            agent_id=agent_id,
            conversation_id=conversation_id,
            turn_ids=turn_ids,
            compacted=compacted,
            include_traces=include_traces,
            after_id=after_id,
            order=sort_order(order),
        )
        return every(self.stub.ListTurns, request, "turns", limit)

    def tool_interactions(
        self,
        agent_id: str,
        *,
        turn_id: str | None = None,
        run_id: str | None = None,
        tool_name: str | None = None,
        statuses: Sequence[InteractionStatusName] = (),
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[traces_pb2.ToolInteraction]:
        """Tool calls, each with its result, in the order of the calls."""
        request = traces_service_pb2.ListToolInteractionsRequest(
            agent_id=agent_id,
            turn_id=turn_id,
            run_id=run_id,
            tool_name=tool_name,
            statuses=[
                traces_pb2.ToolInteractionStatus.Value(f"TOOL_INTERACTION_STATUS_{name.upper()}") for name in statuses
            ],
            order=sort_order(order),
        )
        return every(self.stub.ListToolInteractions, request, "tool_interactions", limit)

    async def export(
        self,
        agent_id: str,
        *,
        conversation_id: str | None = None,
        kinds: Sequence[RecordKind] = (),
        archived: bool | None = None,
    ) -> AsyncIterator[traces_service_pb2.TraceRecord]:
        """Everything of an agent as of the call: traces, episodes, facts, snapshots."""
        request = traces_service_pb2.ExportTracesRequest(
            agent_id=agent_id,
            conversation_id=conversation_id,
            record_types=[
                traces_service_pb2.TraceRecordType.Value(f"TRACE_RECORD_TYPE_{kind.upper()}") for kind in kinds
            ],
            archived=archived,
        )
        async for response in self.stub.ExportTraces(request, timeout=_TRANSFER_SECONDS):
            yield response.record

    async def import_(
        self,
        agent_id: str,
        records: Sequence[traces_service_pb2.TraceRecord],
        *,
        conversation_id: str | None = None,
        extend_window: bool = False,
        request_id: str = "",
    ) -> traces_service_pb2.ImportTracesResponse:
        """Writes records into an agent, all or none; what it has already is passed over.

        Args:
            agent_id: who takes them in.
            records: as `export` gave them.
            conversation_id: where traces go whose conversation the agent does not have; None is its default one.
            extend_window: also show the traces that are not archived at the end of the window.
            request_id: repeat it to get the same result again.
        """
        header = traces_service_pb2.ImportTracesHeader(
            agent_id=agent_id,
            conversation_id=conversation_id,
            extend_window=extend_window,
            record_count=len(records),
        )

        def parts() -> Iterator[traces_service_pb2.ImportTracesRequest]:
            yield traces_service_pb2.ImportTracesRequest(request_id=request_id or new_id("request"), header=header)
            for record in records:
                yield traces_service_pb2.ImportTracesRequest(record=record)

        return await self.stub.ImportTraces(parts(), timeout=_TRANSFER_SECONDS)
