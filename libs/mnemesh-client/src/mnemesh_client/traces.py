"""Turns, tool interactions and raw traces of an agent, and their export and import."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, Literal

from mnemesh.recall.v1 import traces_pb2, traces_service_pb2, traces_service_pb2_grpc
from mnemesh_kit.ids import new_id

from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel

RecordKind = Literal["raw_trace", "episode", "fact", "snapshot"]
InteractionStatusName = Literal["pending", "success", "error", "denied"]

_TRANSFER_SECONDS: Final = 600.0


class TracesClient:
    """Calls of TraceService, as `e.traces`.

    Errors of imports: AlreadyExists (metadata: record_id) and InvalidArgument (metadata: record).
    """

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
        """Yields the turns of an agent by index, oldest first unless `order` is "desc"."""
        request = traces_service_pb2.ListTurnsRequest(
            agent_id=agent_id,
            conversation_id=conversation_id,
            turn_ids=turn_ids,
            compacted=compacted,
            include_traces=include_traces,
            after_id=after_id,
            order=sort_order(order),
        )
        return paginate(self.stub.ListTurns, request, "turns", limit)

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
        """Yields tool calls with their results, in the order of the calls."""
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
        return paginate(self.stub.ListToolInteractions, request, "tool_interactions", limit)

    async def export(
        self,
        agent_id: str,
        *,
        conversation_id: str | None = None,
        kinds: Sequence[RecordKind] = (),
        archived: bool | None = None,
        scope_names: Sequence[str] = (),
    ) -> AsyncIterator[traces_service_pb2.TraceRecord]:
        """Yields the traces, episodes, facts and snapshots of an agent as of the time of the call.

        `scope_names` adds all episodes and facts of these named scopes.
        """
        request = traces_service_pb2.ExportTracesRequest(
            agent_id=agent_id,
            conversation_id=conversation_id,
            record_types=[
                traces_service_pb2.TraceRecordType.Value(f"TRACE_RECORD_TYPE_{kind.upper()}") for kind in kinds
            ],
            archived=archived,
            scope_names=scope_names,
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
        """Imports records into an agent, all or nothing. Records that the agent already has are skipped.

        Args:
            agent_id: the agent to import into.
            records: the records, as yielded by `export`.
            conversation_id: the conversation of traces whose own conversation the agent does not have; None is the
                agent's default conversation.
            extend_window: append the traces that are not archived to the context window.
            request_id: the idempotency key, to get the same result again; empty creates a new one.
        """
        header = traces_service_pb2.ImportTracesHeader(
            agent_id=agent_id,
            conversation_id=conversation_id,
            extend_window=extend_window,
            record_count=len(records),
        )

        def requests() -> Iterator[traces_service_pb2.ImportTracesRequest]:
            yield traces_service_pb2.ImportTracesRequest(request_id=request_id or new_id("request"), header=header)
            for record in records:
                yield traces_service_pb2.ImportTracesRequest(record=record)

        return await self.stub.ImportTraces(requests(), timeout=_TRANSFER_SECONDS)
