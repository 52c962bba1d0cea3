"""The RPCs of TraceService, with the conversion of its messages."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

from mnemesh.recall.v1 import episodes_pb2, traces_pb2, traces_service_pb2_grpc
from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.access import service_only
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument, ResourceExhausted
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_kit.time import (
    optional_timestamp_to_proto,
    timestamp_from_proto,
    timestamp_to_proto,
)
from mnemesh_types.convert import message_from_proto, message_to_proto
from mnemesh_types.recall import InteractionStatus, Turn
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, number_of

from mnemesh_recall.model.episodes import Episode, Fact
from mnemesh_recall.model.trace_requests import (
    InteractionFilter,
    Record,
    RecordType,
    TraceExport,
    TraceImport,
    TurnFilter,
)
from mnemesh_recall.model.traces import Snapshot, ToolInteraction, Trace
from mnemesh_recall.rpc.convert import episodes
from mnemesh_recall.usecases.traces import TraceService

Call = Any
"""The gRPC context of a call, which no RPC here uses."""

SCHEMA_VERSION: Final = 1
M = TypeVar("M", episodes_pb2.Episode, episodes_pb2.Fact)
enum_of(rpc.TraceRecordType, RecordType, TRACE="RAW_TRACE")
_TURN_FILTER: Final = Conversion(
    rpc.ListTurnsRequest, TurnFilter, start_time="from_time", end_time="before_time", include_traces="with_traces"
)
_INTERACTION_FILTER: Final = Conversion(rpc.ListToolInteractionsRequest, InteractionFilter)
_EXPORT: Final = Conversion(rpc.ExportTracesRequest, TraceExport, start_time="from_time", end_time="before_time")


def interaction_to_proto(interaction: ToolInteraction) -> traces_pb2.ToolInteraction:
    calling, returning = interaction.calling, interaction.returning
    result = None if interaction.tool_return is None else interaction.tool_return.text
    failed = interaction.status in (InteractionStatus.ERROR, InteractionStatus.DENIED)
    return traces_pb2.ToolInteraction(
        tool_call_id=interaction.call.id,
        agent_id=calling.agent_id,
        turn_id=calling.turn_id or "",
        tool_name=interaction.call.name,
        arguments=interaction.call.arguments,
        status=number_of(interaction.status),
        result=None if failed else result,
        error=result if failed else None,
        conversation_id=calling.conversation_id,
        run_id=calling.run_id,
        step_id=calling.step_id,
        call_message_id=calling.id,
        return_message_id=None if returning is None else returning.id,
        call_time=timestamp_to_proto(calling.created_at),
        return_time=None if returning is None else timestamp_to_proto(returning.created_at),
    )


def record_to_proto(record: Record) -> rpc.TraceRecord:
    """Converts a record of an export."""
    match record:
        case Trace():
            return rpc.TraceRecord(raw_trace=record.to_proto())
        case Episode():
            return rpc.TraceRecord(episode=episodes.EPISODE.to_proto(record))
        case Fact():
            return rpc.TraceRecord(fact=episodes.FACT.to_proto(record))
        case Snapshot():
            return rpc.TraceRecord(
                snapshot=traces_pb2.TraceSnapshot(
                    schema_version=SCHEMA_VERSION,
                    conversation_id=record.conversation_id,
                    epoch_id=record.epoch,
                    last_compaction_time=optional_timestamp_to_proto(record.reset_at),
                    messages=[message_to_proto(message) for message in record.messages],
                )
            )


def record_from_proto(record: rpc.TraceRecord, *, exact: bool = False) -> Record:
    """Converts a record of an import. Raises InvalidArgument if it is empty or has no time."""
    match record.WhichOneof("record"):
        case "raw_trace":
            return trace_from_proto(record.raw_trace, "record.raw_trace")
        case "episode":
            return _episode_from_proto(record.episode, "record.episode", exact=exact)
        case "fact":
            return _fact_from_proto(record.fact, "record.fact", exact=exact)
        case "snapshot":
            return _snapshot_from_proto(record.snapshot, "record.snapshot")
        case _:
            raise InvalidArgument("record must be a trace, an episode, a fact or a snapshot.", field="record")


def trace_from_proto(trace: traces_pb2.RawTrace, field: str) -> Trace:
    """Converts a trace. Raises InvalidArgument if it has no type or no time."""
    _required_time(trace, "create_time", field)
    return replace(
        Trace.from_proto(trace, field),
        tags=tuple(dict.fromkeys(trace.tags)),
        agent_id="",
        message_id="",
        imported_turn_id=None,
    )


def _episode_from_proto(episode: episodes_pb2.Episode, field: str, *, exact: bool) -> Episode:
    """Converts an imported episode, which keeps its id and times."""
    created_at = _required_time(episode, "create_time", field)
    found = episodes.EPISODE.from_proto(_with_scope(episode, exact=exact), field)
    updated_at = found.updated_at if episode.HasField("update_time") else created_at
    return replace(episodes.each_once(found, "turn_ids", "tags"), updated_at=updated_at)


def _fact_from_proto(fact: episodes_pb2.Fact, field: str, *, exact: bool) -> Fact:
    """Converts an imported fact, closed or not, which keeps its id and times."""
    created_at = _required_time(fact, "create_time", field)
    found = episodes.FACT.from_proto(_with_scope(fact, exact=exact), field, chain_id=fact.id)
    return replace(
        episodes.each_once(found, "tags"),
        updated_at=found.updated_at if fact.HasField("update_time") else created_at,
        first_invalid_at=found.invalid_at if found.closed_at is None else None,
    )


def _with_scope(memory: M, *, exact: bool) -> M:
    """Returns a copy with the named scope of a record, or any but an agent's if it is `exact`.

    The import assigns that of the agent to all others, which have no name meanwhile.
    """
    copy = type(memory)()
    copy.CopyFrom(memory)
    kind = memory.scope.WhichOneof("scope")
    if kind != "name" and not (exact and kind not in (None, "agent_id")):
        copy.scope.name = ""
    return copy


def _snapshot_from_proto(snapshot: traces_pb2.TraceSnapshot, field: str) -> Snapshot:
    """Converts a snapshot with its summaries alone. The traces hold the other messages."""
    summaries = tuple(
        message_from_proto(message, f"{field}.messages[{index}]")
        for index, message in enumerate(snapshot.messages)
        if message.role == message_pb2.ROLE_SUMMARY
    )
    return Snapshot(snapshot.conversation_id, 0, None, summaries)


def _required_time(message: Any, name: str, field: str) -> datetime:
    if not message.HasField(name):
        raise InvalidArgument(f"{field}.{name} is required.", field=f"{field}.{name}")
    return timestamp_from_proto(getattr(message, name), f"{field}.{name}")


MAX_RECORDS: Final = 200_000


def interaction_filter_from_proto(request: rpc.ListToolInteractionsRequest) -> InteractionFilter:
    """Converts the filter of a list of tool interactions. Raises InvalidArgument if a status is unknown."""
    return replace(
        _INTERACTION_FILTER.from_proto(request),
        statuses=tuple(
            dict.fromkeys(enum_from_proto(InteractionStatus, status, "statuses") for status in request.statuses)
        ),
    )


async def import_from_proto(
    stream: AsyncIterator[rpc.ImportTracesRequest],
) -> tuple[TraceImport, RequestKey | None]:
    """Converts the stream of an import. The fingerprint of the key covers all records.

    Raises:
        InvalidArgument: the first message is not the header, another one is, the header counts other records than the
            stream has, or a record is incomplete (metadata: record, its position in the stream from 1).
        ResourceExhausted: the stream has more records than one transaction may store.
    """
    header: rpc.ImportTracesHeader | None = None
    exact = False
    key: RequestKey | None = None
    records: list[Record] = []
    content = hashlib.sha256()
    async for request in stream:
        part = request.WhichOneof("part")
        if header is None:
            if part != "header":
                raise InvalidArgument("The first message must carry the header.", field="header")
            header, key = request.header, request_key(request, "ImportTraces")
            exact = service_only(header.exact, "header.exact")
            content.update(header.SerializeToString(deterministic=True))
            continue
        if part != "record":
            raise InvalidArgument("Every message after the header must carry a record.", field="record")
        if len(records) == MAX_RECORDS:
            raise ResourceExhausted(f"An import is at most {MAX_RECORDS:,} records.", limit=str(MAX_RECORDS))
        content.update(request.record.SerializeToString(deterministic=True))
        records.append(_record(request.record, len(records) + 1, exact=exact))
    if header is None:
        raise InvalidArgument("The first message must carry the header.", field="header")
    if header.HasField("record_count") and header.record_count != len(records):
        raise InvalidArgument(
            f"The stream has {len(records)} records, not {header.record_count}.", field="header.record_count"
        )
    request_ = TraceImport(
        agent_id=header.agent_id,
        conversation_id=header.conversation_id if header.HasField("conversation_id") else None,
        extend_window=header.extend_window,
        records=tuple(records),
        exact=exact,
    )
    return request_, None if key is None else replace(key, fingerprint=content.hexdigest()[:32])


def _record(record: rpc.TraceRecord, position: int, *, exact: bool) -> Record:
    try:
        return record_from_proto(record, exact=exact)
    except InvalidArgument as error:
        raise InvalidArgument(error.message, field=error.field, record=str(position)) from error


class TracesServicer(traces_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, service: TraceService) -> None:
        self._service = service

    async def ListTurns(self, request: rpc.ListTurnsRequest, context: Call) -> rpc.ListTurnsResponse:
        query = page_query(request)
        found = await self._service.list_turns(current_principal(), _TURN_FILTER.from_proto(request), query)
        page = bounded(query, found.map(Turn.to_proto))
        return rpc.ListTurnsResponse(turns=page.items, next_page_token=next_page_token(query, page))

    async def ListToolInteractions(
        self, request: rpc.ListToolInteractionsRequest, context: Call
    ) -> rpc.ListToolInteractionsResponse:
        query = page_query(request)
        filter_ = interaction_filter_from_proto(request)
        found = await self._service.list_interactions(current_principal(), filter_, query)
        page = bounded(query, found.map(interaction_to_proto))
        return rpc.ListToolInteractionsResponse(
            tool_interactions=page.items, next_page_token=next_page_token(query, page)
        )

    async def ExportTraces(
        self, request: rpc.ExportTracesRequest, context: Call
    ) -> AsyncIterator[rpc.ExportTracesResponse]:
        async for record in self._service.export(
            current_principal(), episodes.each_once(_EXPORT.from_proto(request), "scope_names")
        ):
            yield rpc.ExportTracesResponse(record=record_to_proto(record))

    async def ImportTraces(
        self, request_iterator: AsyncIterator[rpc.ImportTracesRequest], context: Call
    ) -> rpc.ImportTracesResponse:
        """Stores the records that the agent does not have."""
        request, key = await import_from_proto(request_iterator)
        result = await self._service.import_records(current_principal(), request, key)
        return rpc.ImportTracesResponse(
            imported_traces=result.traces,
            imported_episodes=result.episodes,
            imported_facts=result.facts,
            skipped_records=result.skipped,
            created_turns=result.turns,
        )
