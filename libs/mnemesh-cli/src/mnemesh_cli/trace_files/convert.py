"""Conversion between trace records of the contract and the JSON objects in trace files."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import episodes_pb2, traces_pb2, traces_service_pb2
from mnemesh_cli.json_lines import Line, encode_json
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import is_id

_TYPES: Final = {
    "user": traces_pb2.TRACE_TYPE_USER,
    "assistant": traces_pb2.TRACE_TYPE_ASSISTANT,
    "tool_call": traces_pb2.TRACE_TYPE_TOOL_CALL,
    "tool_result": traces_pb2.TRACE_TYPE_TOOL_RESULT,
}
_TYPE_NAMES: Final = {number: name for name, number in _TYPES.items()}
_TEXT_FIELDS: Final = ("tool_name", "tool_call_id", "tool_error", "correlation_id", "tool_result_ref")
_JSON_FIELDS: Final = ("tool_args", "tool_result")
_ID_PREFIXES: Final = {"conversation_id": "conv", "run_id": "run"}
_IMPORTED_TURN: Final = "imported_turn_id"
_SCOPE: Final = "memory_scope"
"""The name of a scope that agents share. Memories of the agent's own scope have none."""
_TIME_FIELDS: Final = {
    "valid_from_ts": "valid_from_time", "invalid_ts": "invalid_time", "close_ts": "close_time",
    "update_ts": "update_time", "start_ts": "start_time", "end_ts": "end_time",
}  # fmt: skip
_FACT_FIELDS: Final = ("superseded_by_id", "supersedes_id", "invalid_reason")
_SOURCE_FIELDS: Final = ("agent_id", "conversation_id", "run_id", "episode_id", "model")


def trace_to_line(trace: traces_pb2.RawTrace) -> Line:
    """Returns the line of a trace in raw_traces.jsonl. `ts` is in seconds since 1970, to the microsecond."""
    line: Line = {
        "id": trace.id,
        "ts": _seconds(trace.create_time),
        "turn_id": trace.turn_id,
        "seq": trace.seq,
        "trace_type": _TYPE_NAMES[trace.trace_type],
        "content": trace.content,
        "source_event": trace.source_event,
    }
    if trace.HasField("media"):
        line["media"] = {name: list(getattr(trace.media, name)) for name in ("images", "audio", "video")}
    known: Any = trace
    names = (*_TEXT_FIELDS, *_ID_PREFIXES, _IMPORTED_TURN)
    line |= {name: getattr(trace, name) for name in names if known.HasField(name)}
    line |= {name: json.loads(getattr(trace, name)) for name in _JSON_FIELDS if known.HasField(name)}
    if trace.tags:
        line["tags"] = list(trace.tags)
    return line | _json_object(trace, "extra")


def trace_from_line(line: Mapping[str, Any], *, archived: bool) -> traces_service_pb2.TraceRecord:
    """Returns the trace of a line. Unknown keys are kept in `extra`.

    Raises:
        InvalidArgument: a required key is missing, or of the wrong type.
    """
    left = dict(line)
    trace = traces_pb2.RawTrace(
        id=_pop(left, "id", str),
        create_time=_timestamp(_pop(left, "ts", float)),
        turn_id=_pop(left, "turn_id", str),
        seq=_pop(left, "seq", int),
        trace_type=_type(_pop(left, "trace_type", str)),
        content=_pop(left, "content", str),
        source_event=_pop(left, "source_event", str),
        archived=archived,
    )
    if _is_media(left.get("media")):
        trace.media.CopyFrom(traces_pb2.TraceMedia(**left.pop("media")))
    for name in (*_TEXT_FIELDS, _IMPORTED_TURN):
        if isinstance(left.get(name), str):
            setattr(trace, name, left.pop(name))
    for name, prefix in _ID_PREFIXES.items():
        if isinstance(left.get(name), str) and is_id(left[name], prefix):
            setattr(trace, name, left.pop(name))
    for name in _JSON_FIELDS:
        if name in left:
            setattr(trace, name, encode_json(left.pop(name)))
    if _is_strings(left.get("tags")):
        trace.tags.extend(left.pop("tags"))
    if left:
        trace.extra = encode_json(left)
    return traces_service_pb2.TraceRecord(raw_trace=trace)


def episode_to_line(episode: episodes_pb2.Episode) -> Line:
    """Returns the line of an episode in episodic.jsonl."""
    line: Line = {
        "id": episode.id,
        "ts": _seconds(episode.create_time),
        "turn_ids": list(episode.turn_ids),
        "summary": episode.summary,
        "tags": list(episode.tags),
    }
    return line | _common_fields(episode)


def fact_to_line(fact: episodes_pb2.Fact) -> Line:
    """Returns the line of a fact, closed or not, in semantic.jsonl."""
    line: Line = {
        "id": fact.id,
        "ts": _seconds(fact.create_time),
        "fact": fact.text,
        "tags": list(fact.tags),
    }
    if fact.HasField("confidence"):
        line["confidence"] = fact.confidence
    line |= {name: getattr(fact, name) for name in _FACT_FIELDS if fact.HasField(name)}
    if fact.HasField("invalid_source"):
        line["invalid_source"] = _source_line(fact.invalid_source)
    return line | _common_fields(fact)


def episode_from_line(line: Mapping[str, Any]) -> traces_service_pb2.TraceRecord:
    """Returns the episode of a line. See `trace_from_line`."""
    left = dict(line)
    episode = episodes_pb2.Episode(
        id=_pop(left, "id", str),
        create_time=_timestamp(_pop(left, "ts", float)),
        summary=_pop(left, "summary", str),
        turn_ids=_pop(left, "turn_ids", list),
    )
    _read_common_fields(episode, left)
    return traces_service_pb2.TraceRecord(episode=episode)


def fact_from_line(line: Mapping[str, Any]) -> traces_service_pb2.TraceRecord:
    """Returns the fact of a line. See `trace_from_line`."""
    left = dict(line)
    fact = episodes_pb2.Fact(
        id=_pop(left, "id", str), create_time=_timestamp(_pop(left, "ts", float)), text=_pop(left, "fact", str)
    )
    if _is_number(left.get("confidence")):
        fact.confidence = left.pop("confidence")
    for name in _FACT_FIELDS:
        if isinstance(left.get(name), str):
            setattr(fact, name, left.pop(name))
    if (source := _source(left.get("invalid_source"))) is not None:
        fact.invalid_source.CopyFrom(source)
        del left["invalid_source"]
    _read_common_fields(fact, left)
    return traces_service_pb2.TraceRecord(fact=fact)


def _common_fields(memory: episodes_pb2.Episode | episodes_pb2.Fact) -> Line:
    line: Line = {}
    if memory.HasField("salience"):
        line["salience"] = memory.salience
    known: Any = memory
    for key, name in _TIME_FIELDS.items():
        if name in memory.DESCRIPTOR.fields_by_name and known.HasField(name):
            line[key] = _seconds(getattr(memory, name))
    if memory.scope.WhichOneof("scope") == "name":
        line[_SCOPE] = memory.scope.name
    if source := _source_line(memory.source):
        line["source"] = source
    if memory.HasField("metadata"):
        line["metadata"] = json.loads(memory.metadata)
    return line | _json_object(memory, "extra")


def _read_common_fields(memory: Any, left: Line) -> None:
    if _is_strings(left.get("tags")):
        memory.tags.extend(left.pop("tags"))
    if _is_number(left.get("salience")):
        memory.salience = left.pop("salience")
    for key, name in _TIME_FIELDS.items():
        if name in memory.DESCRIPTOR.fields_by_name and _is_number(left.get(key)):
            getattr(memory, name).CopyFrom(_timestamp(left.pop(key)))
    if isinstance(left.get(_SCOPE), str):
        memory.scope.name = left.pop(_SCOPE)
    if (source := _source(left.get("source"))) is not None:
        memory.source.CopyFrom(source)
        del left["source"]
    if isinstance(left.get("metadata"), dict):
        memory.metadata = encode_json(left.pop("metadata"))
    if left:
        memory.extra = encode_json(left)


def _source_line(source: episodes_pb2.MemorySource) -> Line:
    line: Line = {"message_ids": list(source.message_ids)} if source.message_ids else {}
    known: Any = source
    return line | {name: getattr(source, name) for name in _SOURCE_FIELDS if known.HasField(name)}


def _source(value: Any) -> episodes_pb2.MemorySource | None:
    if not isinstance(value, dict) or not set(value) <= {"message_ids", *_SOURCE_FIELDS}:
        return None
    try:
        return episodes_pb2.MemorySource(**value)
    except TypeError:
        return None


def _json_object(message: Any, name: str) -> Line:
    """Returns the JSON object in a field, or an empty one if the field is not set."""
    return dict(json.loads(getattr(message, name))) if message.HasField(name) else {}


def _pop(line: Line, key: str, kind: type) -> Any:
    value = line.pop(key, None)
    if not _IS[kind](value):
        raise InvalidArgument(f"{key} is missing or has the wrong type.", field=key)
    return value


def _type(name: str) -> traces_pb2.TraceType.ValueType:
    if name not in _TYPES:
        raise InvalidArgument(f"trace_type must be one of {', '.join(_TYPES)}.", field="trace_type")
    return _TYPES[name]


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_media(value: Any) -> bool:
    return (
        isinstance(value, dict) and set(value) <= {"images", "audio", "video"} and all(map(_is_strings, value.values()))
    )


_IS: Final[Mapping[type, Callable[[Any], bool]]] = {
    str: lambda value: isinstance(value, str),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: _is_number,
    list: _is_strings,
}


def _seconds(timestamp: Timestamp) -> float:
    return round(timestamp.seconds + timestamp.nanos / 1e9, 6)


def _timestamp(seconds: float) -> Timestamp:
    whole, micros = divmod(round(seconds * 1e6), 1_000_000)
    return Timestamp(seconds=whole, nanos=micros * 1000)


def ids_of(lines: Iterable[Mapping[str, Any]]) -> set[str]:
    return {line["id"] for line in lines if isinstance(line.get("id"), str)}
