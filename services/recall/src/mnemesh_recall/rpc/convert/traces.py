"""The conversion of turns, traces, tool interactions and records, and of the requests of TraceService."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from mnemesh.recall.v1 import episodes_pb2, traces_pb2
from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.access import service_only
from mnemesh_kit.errors import InvalidArgument, ResourceExhausted
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.paging import PageQuery, page_query
from mnemesh_kit.time import (
    optional_timestamp_from_proto,
    optional_timestamp_to_proto,
    timestamp_from_proto,
    timestamp_to_proto,
)
from mnemesh_types.convert import message_from_proto, message_to_proto
from mnemesh_types.recall import InteractionStatus
from mnemesh_types.twin import enum_from_proto, number_of

from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
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

SCHEMA_VERSION: Final = 1
_UNASSIGNED: Final = Scope(ScopeKind.NAME, "")
"""The scope of a record before the import assigns that of the agent."""
RECORD_TYPE_FROM_PROTO: Final = {
    rpc.TRACE_RECORD_TYPE_RAW_TRACE: RecordType.TRACE,
    rpc.TRACE_RECORD_TYPE_EPISODE: RecordType.EPISODE,
    rpc.TRACE_RECORD_TYPE_FACT: RecordType.FACT,
    rpc.TRACE_RECORD_TYPE_SNAPSHOT: RecordType.SNAPSHOT,
}


def interaction_to_proto(interaction: ToolInteraction) -> traces_pb2.ToolInteraction:
    """Converts a tool call with its result."""
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
            return rpc.TraceRecord(episode=episodes.episode_to_proto(record))
        case Fact():
            return rpc.TraceRecord(fact=episodes.fact_to_proto(record))
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
    new = episodes.new_episode_from_proto(_without_scope(episode), field)
    created_at = _required_time(episode, "create_time", field)
    return Episode(
        id=episode.id,
        scope=_import_scope(episode, exact=exact),
        summary=new.summary,
        created_at=created_at,
        updated_at=optional_timestamp_from_proto(episode, "update_time", f"{field}.update_time") or created_at,
        turn_ids=new.turn_ids,
        tags=new.tags,
        salience=new.salience,
        source=new.source,
        started_at=new.started_at,
        ended_at=new.ended_at,
        metadata=new.metadata,
        extra=new.extra,
    )


def _fact_from_proto(fact: episodes_pb2.Fact, field: str, *, exact: bool) -> Fact:
    """Converts an imported fact, closed or not, which keeps its id and times."""
    new = episodes.new_fact_from_proto(_without_scope(fact), field)
    created_at = _required_time(fact, "create_time", field)
    closed_at = optional_timestamp_from_proto(fact, "close_time", f"{field}.close_time")
    return Fact(
        id=fact.id,
        scope=_import_scope(fact, exact=exact),
        text=new.text,
        created_at=created_at,
        updated_at=optional_timestamp_from_proto(fact, "update_time", f"{field}.update_time") or created_at,
        chain_id=fact.id,
        tags=new.tags,
        confidence=new.confidence,
        salience=new.salience,
        source=new.source,
        metadata=new.metadata,
        extra=new.extra,
        valid_from=new.valid_from,
        invalid_at=new.invalid_at,
        first_invalid_at=new.invalid_at if closed_at is None else None,
        closed_at=closed_at,
        superseded_by_id=fact.superseded_by_id if fact.HasField("superseded_by_id") else None,
        supersedes_id=fact.supersedes_id if fact.HasField("supersedes_id") else None,
        invalid_reason=fact.invalid_reason if fact.HasField("invalid_reason") else None,
        invalid_source=episodes.source_from_proto(fact.invalid_source) if fact.HasField("invalid_source") else None,
    )


def _import_scope(memory: episodes_pb2.Episode | episodes_pb2.Fact, *, exact: bool) -> Scope:
    """Returns the named scope of a record, or any but an agent's if it is `exact`.

    The import assigns that of the agent to all others.
    """
    if exact and memory.scope.WhichOneof("scope") not in (None, "agent_id"):
        return episodes.scope_from_proto(memory.scope, "record")
    return Scope(ScopeKind.NAME, memory.scope.name) if memory.scope.WhichOneof("scope") == "name" else _UNASSIGNED


def _snapshot_from_proto(snapshot: traces_pb2.TraceSnapshot, field: str) -> Snapshot:
    """Converts a snapshot with its summaries alone. The traces hold the other messages."""
    summaries = tuple(
        message_from_proto(message, f"{field}.messages[{index}]")
        for index, message in enumerate(snapshot.messages)
        if message.role == message_pb2.ROLE_SUMMARY
    )
    return Snapshot(snapshot.conversation_id, 0, None, summaries)


def _without_scope(memory: Any) -> Any:
    copy = type(memory)()
    copy.CopyFrom(memory)
    copy.ClearField("scope")
    return copy


def _required_time(message: Any, name: str, field: str) -> datetime:
    if not message.HasField(name):
        raise InvalidArgument(f"{field}.{name} is required.", field=f"{field}.{name}")
    return timestamp_from_proto(getattr(message, name), f"{field}.{name}")


MAX_RECORDS: Final = 200_000


def page_from_proto(request: Any) -> PageQuery:
    """Converts the paging fields of a list. Raises InvalidArgument if its order is unknown."""
    if request.order_by not in request.DESCRIPTOR.fields_by_name["order_by"].enum_type.values_by_number:
        raise InvalidArgument("order_by must be an order of this list.", field="order_by")
    return page_query(request)


def turn_filter_from_proto(request: rpc.ListTurnsRequest) -> TurnFilter:
    """Converts the filter of a list of turns."""
    return TurnFilter(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        turn_ids=tuple(request.turn_ids),
        from_time=optional_timestamp_from_proto(request, "start_time"),
        before_time=optional_timestamp_from_proto(request, "end_time"),
        compacted=request.compacted if request.HasField("compacted") else None,
        with_traces=request.include_traces,
    )


def interaction_filter_from_proto(request: rpc.ListToolInteractionsRequest) -> InteractionFilter:
    """Converts the filter of a list of tool interactions. Raises InvalidArgument if a status is unknown."""
    statuses = (enum_from_proto(InteractionStatus, status, "statuses") for status in dict.fromkeys(request.statuses))
    return InteractionFilter(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        turn_id=request.turn_id if request.HasField("turn_id") else None,
        run_id=request.run_id if request.HasField("run_id") else None,
        tool_name=request.tool_name if request.HasField("tool_name") else None,
        statuses=tuple(statuses),
    )


def export_from_proto(request: rpc.ExportTracesRequest) -> TraceExport:
    """Converts an export. Raises InvalidArgument if a type of records is unknown."""
    if any(kind not in RECORD_TYPE_FROM_PROTO for kind in request.record_types):
        raise InvalidArgument("record_types must be types of records.", field="record_types")
    return TraceExport(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        record_types=tuple(RECORD_TYPE_FROM_PROTO[kind] for kind in request.record_types),
        from_time=optional_timestamp_from_proto(request, "start_time"),
        before_time=optional_timestamp_from_proto(request, "end_time"),
        archived=request.archived if request.HasField("archived") else None,
        scope_names=tuple(dict.fromkeys(request.scope_names)),
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
