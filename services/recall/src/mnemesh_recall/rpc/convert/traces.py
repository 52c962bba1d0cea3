"""Turns, traces, tool interactions and records between the wire and the domain."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from mnemesh.recall.v1 import episodes_pb2, traces_pb2
from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id

from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.model.message_rules import MAX_NAME_CHARACTERS, require_text
from mnemesh_recall.model.trace_operations import Record, RecordType
from mnemesh_recall.model.traces import (
    InteractionStatus,
    Media,
    Snapshot,
    ToolInteraction,
    Trace,
    TraceType,
    Turn,
    text_of,
)
from mnemesh_recall.rpc.convert import episodes
from mnemesh_recall.rpc.convert.messages import instant, message_out, timestamp

MAX_URLS: Final = 100
SCHEMA_VERSION: Final = 1
_NOBODY: Final = Scope(ScopeKind.NAME, "")
"""The scope of a record that is yet to be given one: that of the agent that takes it in."""
_TYPES: Final = {
    traces_pb2.TRACE_TYPE_USER: TraceType.USER,
    traces_pb2.TRACE_TYPE_ASSISTANT: TraceType.ASSISTANT,
    traces_pb2.TRACE_TYPE_TOOL_CALL: TraceType.TOOL_CALL,
    traces_pb2.TRACE_TYPE_TOOL_RESULT: TraceType.TOOL_RESULT,
}
_TYPES_OUT: Final = {kind: number for number, kind in _TYPES.items()}
STATUSES: Final = {
    traces_pb2.TOOL_INTERACTION_STATUS_PENDING: InteractionStatus.PENDING,
    traces_pb2.TOOL_INTERACTION_STATUS_SUCCESS: InteractionStatus.SUCCESS,
    traces_pb2.TOOL_INTERACTION_STATUS_ERROR: InteractionStatus.ERROR,
}
_STATUSES_OUT: Final = {status: number for number, status in STATUSES.items()}
RECORD_TYPES: Final = {
    rpc.TRACE_RECORD_TYPE_RAW_TRACE: RecordType.TRACE,
    rpc.TRACE_RECORD_TYPE_EPISODE: RecordType.EPISODE,
    rpc.TRACE_RECORD_TYPE_FACT: RecordType.FACT,
    rpc.TRACE_RECORD_TYPE_SNAPSHOT: RecordType.SNAPSHOT,
}


def turn_out(turn: Turn) -> traces_pb2.Turn:
    """A turn for the wire."""
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
        traces=[trace_out(trace) for trace in turn.traces],
        start_time=timestamp(turn.started_at),
        end_time=timestamp(turn.ended_at),
    )


def interaction_out(interaction: ToolInteraction) -> traces_pb2.ToolInteraction:
    """A tool call with its result, for the wire."""
    calling, answering = interaction.calling, interaction.answering
    said = None if interaction.answer is None else text_of(interaction.answer.content)
    failed = interaction.status is InteractionStatus.ERROR
    return traces_pb2.ToolInteraction(
        tool_call_id=interaction.call.id,
        agent_id=calling.agent_id,
        turn_id=calling.turn_id or "",
        tool_name=interaction.call.name,
        arguments=interaction.call.arguments,
        status=_STATUSES_OUT[interaction.status],
        result=None if failed else said,
        error=said if failed else None,
        conversation_id=calling.conversation_id,
        run_id=calling.run_id,
        step_id=calling.step_id,
        call_message_id=calling.id,
        return_message_id=None if answering is None else answering.id,
        call_time=timestamp(calling.created_at),
        return_time=None if answering is None else timestamp(answering.created_at),
    )


def trace_out(trace: Trace) -> traces_pb2.RawTrace:
    """A trace for the wire."""
    media = trace.media
    return traces_pb2.RawTrace(
        id=trace.id,
        create_time=timestamp(trace.created_at),
        turn_id=trace.turn_id,
        seq=trace.seq,
        trace_type=_TYPES_OUT[trace.trace_type],
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
        archived=trace.archived,
    )


def record_out(record: Record) -> rpc.TraceRecord:
    """A record for the wire."""
    match record:
        case Trace():
            return rpc.TraceRecord(raw_trace=trace_out(record))
        case Episode():
            return rpc.TraceRecord(episode=episodes.episode_out(record))
        case Fact():
            return rpc.TraceRecord(fact=episodes.fact_out(record))
        case Snapshot():
            return rpc.TraceRecord(
                snapshot=traces_pb2.TraceSnapshot(
                    schema_version=SCHEMA_VERSION,
                    conversation_id=record.conversation_id,
                    epoch_id=record.epoch,
                    last_compaction_time=None if record.reset_at is None else timestamp(record.reset_at),
                    messages=[message_out(message) for message in record.messages],
                )
            )


def record_in(record: rpc.TraceRecord) -> Record:
    """A record to be taken in."""
    match record.WhichOneof("record"):
        case "raw_trace":
            return trace_in(record.raw_trace, "record.raw_trace")
        case "episode":
            return episode_in(record.episode, "record.episode")
        case "fact":
            return fact_in(record.fact, "record.fact")
        case "snapshot":
            return Snapshot(record.snapshot.conversation_id, 0, None, ())
        case _:
            raise InvalidArgument("record must be a trace, an episode, a fact or a snapshot.", field="record")


def trace_in(trace: traces_pb2.RawTrace, field: str) -> Trace:
    """A trace to be taken in."""
    kind = _TYPES.get(trace.trace_type)
    if kind is None:
        raise InvalidArgument(f"{field}.trace_type must be given.", field=f"{field}.trace_type")
    if trace.seq < 1:
        raise InvalidArgument(f"{field}.seq must be 1 or more.", field=f"{field}.seq")
    require_text(trace.content, f"{field}.content")
    return Trace(
        id=episodes.short(trace.id, f"{field}.id"),
        created_at=_time(trace, "create_time", field),
        turn_id=episodes.short(trace.turn_id, f"{field}.turn_id"),
        seq=trace.seq,
        trace_type=kind,
        content=trace.content,
        source_event=_name(trace.source_event, f"{field}.source_event"),
        media=_media(trace.media, f"{field}.media") if trace.HasField("media") else None,
        tool_name=_name(trace.tool_name, f"{field}.tool_name") if trace.HasField("tool_name") else None,
        tool_call_id=episodes.short(trace.tool_call_id, f"{field}.tool_call_id")
        if trace.HasField("tool_call_id")
        else None,
        tool_args=_json(trace.tool_args, f"{field}.tool_args") if trace.HasField("tool_args") else None,
        tool_result=_json(trace.tool_result, f"{field}.tool_result") if trace.HasField("tool_result") else None,
        tool_error=_text(trace.tool_error, f"{field}.tool_error") if trace.HasField("tool_error") else None,
        correlation_id=_name(trace.correlation_id, f"{field}.correlation_id")
        if trace.HasField("correlation_id")
        else None,
        tags=episodes.tags_in(trace.tags, f"{field}.tags"),
        tool_result_ref=_text(trace.tool_result_ref, f"{field}.tool_result_ref")
        if trace.HasField("tool_result_ref")
        else None,
        extra=episodes.metadata_in(trace, "extra", field),
        conversation_id=trace.conversation_id if trace.HasField("conversation_id") else None,
        run_id=require_id(trace.run_id, "run", f"{field}.run_id") if trace.HasField("run_id") else None,
        archived=trace.archived,
    )


def episode_in(episode: episodes_pb2.Episode, field: str) -> Episode:
    """An episode to be taken in under its own id and times."""
    new = episodes.new_episode(_unscoped(episode), field)
    created = _time(episode, "create_time", field)
    return Episode(
        id=episodes.short(episode.id, f"{field}.id"),
        scope=_NOBODY,
        summary=new.summary,
        created_at=created,
        updated_at=_time(episode, "update_time", field) if episode.HasField("update_time") else created,
        turn_ids=new.turn_ids,
        tags=new.tags,
        salience=new.salience,
        source=new.source,
        started_at=new.started_at,
        ended_at=new.ended_at,
        metadata=new.metadata,
        extra=new.extra,
    )


def fact_in(fact: episodes_pb2.Fact, field: str) -> Fact:
    """A fact to be taken in under its own id and times, closed or not."""
    given = _unscoped(fact)
    # What never held ends where it starts.
    given.ClearField("invalid_time")
    new = episodes.new_fact(given, field)
    created = _time(fact, "create_time", field)
    ends = _time(fact, "invalid_time", field) if fact.HasField("invalid_time") else None
    closed = _time(fact, "close_time", field) if fact.HasField("close_time") else None
    id_ = episodes.short(fact.id, f"{field}.id")
    return Fact(
        id=id_,
        scope=_NOBODY,
        text=new.text,
        created_at=created,
        updated_at=_time(fact, "update_time", field) if fact.HasField("update_time") else created,
        chain_id=id_,
        tags=new.tags,
        confidence=new.confidence,
        salience=new.salience,
        source=new.source,
        metadata=new.metadata,
        extra=new.extra,
        valid_from=new.valid_from,
        invalid_at=ends,
        first_invalid_at=ends if closed is None else None,
        closed_at=closed,
        superseded_by_id=_link(fact, "superseded_by_id", field),
        supersedes_id=_link(fact, "supersedes_id", field),
        invalid_reason=_text(fact.invalid_reason, f"{field}.invalid_reason")
        if fact.HasField("invalid_reason")
        else None,
        invalid_source=episodes.source_in(fact.invalid_source, f"{field}.invalid_source")
        if fact.HasField("invalid_source")
        else None,
    )


def _unscoped(memory: Any) -> Any:
    copy = type(memory)()
    copy.CopyFrom(memory)
    copy.ClearField("scope")
    return copy


def _link(fact: episodes_pb2.Fact, name: Any, field: str) -> str | None:
    return episodes.short(getattr(fact, name), f"{field}.{name}") if fact.HasField(name) else None


def _media(media: traces_pb2.TraceMedia, field: str) -> Media:
    urls = {name: tuple(getattr(media, name)) for name in ("images", "audio", "video")}
    for name, given in urls.items():
        if len(given) > MAX_URLS:
            raise InvalidArgument(f"{field}.{name} must be at most {MAX_URLS}.", field=f"{field}.{name}")
        for index, url in enumerate(given):
            require_text(url, f"{field}.{name}[{index}]")
    return Media(**urls)


def _time(message: Any, name: str, field: str) -> datetime:
    if not message.HasField(name):
        raise InvalidArgument(f"{field}.{name} is required.", field=f"{field}.{name}")
    return instant(getattr(message, name), f"{field}.{name}")


def _json(text: str, field: str) -> str:
    require_text(text, field)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"{field} is not JSON.", field=field) from error
    return text


def _text(text: str, field: str) -> str:
    require_text(text, field)
    return text


def _name(text: str, field: str) -> str:
    if len(text) > MAX_NAME_CHARACTERS or "\0" in text:
        raise InvalidArgument(f"{field} must be at most {MAX_NAME_CHARACTERS} characters, none NUL.", field=field)
    return text
