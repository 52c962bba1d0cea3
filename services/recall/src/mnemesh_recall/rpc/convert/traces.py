"""The conversion of turns, traces, tool interactions and records."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from mnemesh.recall.v1 import episodes_pb2, traces_pb2
from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import (
    optional_timestamp_from_proto,
    optional_timestamp_to_proto,
    timestamp_from_proto,
    timestamp_to_proto,
)
from mnemesh_types.convert import message_from_proto, message_to_proto

from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.model.tool_interactions import InteractionStatus, ToolInteraction
from mnemesh_recall.model.trace_operations import Record, RecordType
from mnemesh_recall.model.traces import Media, Snapshot, Trace, TraceType, Turn
from mnemesh_recall.rpc.convert import episodes

SCHEMA_VERSION: Final = 1
_UNASSIGNED: Final = Scope(ScopeKind.NAME, "")
"""The scope of a record before the import assigns that of the agent."""
_TYPE_FROM_PROTO: Final = {
    traces_pb2.TRACE_TYPE_USER: TraceType.USER,
    traces_pb2.TRACE_TYPE_ASSISTANT: TraceType.ASSISTANT,
    traces_pb2.TRACE_TYPE_TOOL_CALL: TraceType.TOOL_CALL,
    traces_pb2.TRACE_TYPE_TOOL_RESULT: TraceType.TOOL_RESULT,
}
_TYPE_TO_PROTO: Final = {kind: number for number, kind in _TYPE_FROM_PROTO.items()}
STATUS_FROM_PROTO: Final = {
    traces_pb2.TOOL_INTERACTION_STATUS_PENDING: InteractionStatus.PENDING,
    traces_pb2.TOOL_INTERACTION_STATUS_SUCCESS: InteractionStatus.SUCCESS,
    traces_pb2.TOOL_INTERACTION_STATUS_ERROR: InteractionStatus.ERROR,
    traces_pb2.TOOL_INTERACTION_STATUS_DENIED: InteractionStatus.DENIED,
}
_STATUS_TO_PROTO: Final = {status: number for number, status in STATUS_FROM_PROTO.items()}
RECORD_TYPE_FROM_PROTO: Final = {
    rpc.TRACE_RECORD_TYPE_RAW_TRACE: RecordType.TRACE,
    rpc.TRACE_RECORD_TYPE_EPISODE: RecordType.EPISODE,
    rpc.TRACE_RECORD_TYPE_FACT: RecordType.FACT,
    rpc.TRACE_RECORD_TYPE_SNAPSHOT: RecordType.SNAPSHOT,
}


def turn_to_proto(turn: Turn) -> traces_pb2.Turn:
    """Converts a turn."""
    return traces_pb2.Turn(
        id=turn.id,
        agent_id=turn.agent_id,
        conversation_id=turn.conversation_id or "",
        index=turn.index,
        first_message_id=turn.first_message_id,
        last_message_id=turn.last_message_id,
        message_count=turn.message_count,
        tool_call_count=turn.tool_call_count,
        compacted=turn.compacted,
        episode_id=turn.episode_id,
        traces=[trace_to_proto(trace) for trace in turn.traces],
        imported_id=turn.imported_id,
        start_time=timestamp_to_proto(turn.started_at),
        end_time=timestamp_to_proto(turn.ended_at),
    )


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
        status=_STATUS_TO_PROTO[interaction.status],
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


def trace_to_proto(trace: Trace) -> traces_pb2.RawTrace:
    """Converts a trace."""
    media = trace.media
    return traces_pb2.RawTrace(
        id=trace.id,
        create_time=timestamp_to_proto(trace.created_at),
        turn_id=trace.turn_id,
        seq=trace.seq,
        trace_type=_TYPE_TO_PROTO[trace.trace_type],
        content=trace.content,
        source_event=trace.source_event,
        media=None
        if media is None
        else traces_pb2.TraceMedia(images=media.images, audio=media.audio, video=media.video),
        tool_name=trace.tool_name,
        tool_call_id=trace.tool_call_id,
        tool_args=trace.tool_args,
        tool_result=trace.tool_result,
        tool_error=trace.tool_error,
        correlation_id=trace.correlation_id,
        tags=trace.tags,
        tool_result_ref=trace.tool_result_ref,
        extra=trace.extra,
        agent_id=trace.agent_id,
        conversation_id=trace.conversation_id,
        message_id=trace.message_id,
        run_id=trace.run_id,
        imported_turn_id=trace.imported_turn_id,
        archived=trace.archived,
    )


def record_to_proto(record: Record) -> rpc.TraceRecord:
    """Converts a record of an export."""
    match record:
        case Trace():
            return rpc.TraceRecord(raw_trace=trace_to_proto(record))
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
    kind = _TYPE_FROM_PROTO.get(trace.trace_type)
    if kind is None:
        raise InvalidArgument(f"{field}.trace_type must be given.", field=f"{field}.trace_type")
    return Trace(
        id=trace.id,
        created_at=_required_time(trace, "create_time", field),
        turn_id=trace.turn_id,
        seq=trace.seq,
        trace_type=kind,
        content=trace.content,
        source_event=trace.source_event,
        media=_media_from_proto(trace.media) if trace.HasField("media") else None,
        tool_name=trace.tool_name if trace.HasField("tool_name") else None,
        tool_call_id=trace.tool_call_id if trace.HasField("tool_call_id") else None,
        tool_args=trace.tool_args if trace.HasField("tool_args") else None,
        tool_result=trace.tool_result if trace.HasField("tool_result") else None,
        tool_error=trace.tool_error if trace.HasField("tool_error") else None,
        correlation_id=trace.correlation_id if trace.HasField("correlation_id") else None,
        tags=tuple(dict.fromkeys(trace.tags)),
        tool_result_ref=trace.tool_result_ref if trace.HasField("tool_result_ref") else None,
        extra=trace.extra if trace.HasField("extra") else None,
        conversation_id=trace.conversation_id if trace.HasField("conversation_id") else None,
        run_id=trace.run_id if trace.HasField("run_id") else None,
        archived=trace.archived,
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


def _media_from_proto(media: traces_pb2.TraceMedia) -> Media:
    return Media(images=tuple(media.images), audio=tuple(media.audio), video=tuple(media.video))


def _required_time(message: Any, name: str, field: str) -> datetime:
    if not message.HasField(name):
        raise InvalidArgument(f"{field}.{name} is required.", field=f"{field}.{name}")
    return timestamp_from_proto(getattr(message, name), f"{field}.{name}")
