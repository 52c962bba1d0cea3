"""Traces, episodes and facts as JSON lines in a directory."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import episodes_pb2, traces_pb2, traces_service_pb2
from mnemesh_client.traces import TracesClient
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, MnemeshError, NotFound, Unavailable
from mnemesh_kit.ids import is_id

Line = dict[str, Any]


def read_lines(path: Path, *, skip_incomplete: bool = False) -> Iterator[tuple[int, Line]]:
    """Yields the number and the object of each line that is not empty; nothing if there is no file.

    Args:
        path: the file.
        skip_incomplete: whether a last line without a line break is skipped, which a crash leaves behind in a file that
            grows.

    Raises:
        InvalidArgument: the file cannot be read, or a line is not a JSON object.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}.", field=path.name) from error
    if skip_incomplete:
        content = content[: content.rfind(b"\n") + 1]
    for number, text in enumerate(content.split(b"\n"), start=1):
        if not text.strip():
            continue
        yield number, parse_line(path, number, text)


def parse_line(path: Path, number: int, text: bytes) -> Line:
    """Returns the object of a line. Raises InvalidArgument if it is none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise line_error(path, number, "not JSON.") from error
    if not isinstance(line, dict):
        raise line_error(path, number, "not a JSON object.")
    return line


def line_error(path: Path, number: int, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{path}, line {number}: {problem}", field=path.name, line=str(number))


def encode_json(value: Any) -> str:
    """Returns compact JSON with non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def sync_directory(directory: Path) -> None:
    """Flushes the entries of a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    line: Line = {"id": fact.id, "ts": _seconds(fact.create_time), "fact": fact.text, "tags": list(fact.tags)}
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


ACTIVE: Final = "raw_traces.jsonl"
ARCHIVE: Final = "raw_traces_archive.jsonl"
EPISODES: Final = "episodic.jsonl"
FACTS: Final = "semantic.jsonl"

TURNS_PER_REQUEST = 100


def _ignore(step: str) -> None:
    """Ignores the step."""


class TraceDirectory:
    """The trace files of an agent: active traces, archived traces, episodes and facts.

    The active file has the traces of turns in a context window. A trace is appended to the archive before it is
    removed from the active file, so each trace is always in at least one of them; readers count it once. Readers skip
    a last line without a line break, which a crash leaves behind, and the next write removes it.
    """

    def __init__(self, path: Path, *, before: Callable[[str], None] = _ignore) -> None:
        """Opens the files in `path`. `before` is called with the name of each step before it changes a file."""
        self.path = path
        self._before = before

    @classmethod
    def of_agent(cls, base: Path, agent_id: str) -> "TraceDirectory":
        """Returns the directory of an agent in a base directory, which may have many."""
        return cls(base / "agents" / agent_id)

    def lines(self, name: str) -> list[Line]:
        """Returns the lines of a file; an empty list if there is no file.

        Raises:
            InvalidArgument: a line is not a JSON object.
        """
        return [line for _, line in read_lines(self.path / name, skip_incomplete=True)]

    def records(self) -> Iterator[traces_service_pb2.TraceRecord]:
        """Yields all records, each trace once: archived traces, active traces, episodes, facts.

        Raises:
            InvalidArgument: a file cannot be read, or a line is not a JSON object or has not the fields of its file.
                The message is one line with the file, the number of the line, and the reason.
        """
        archive = _records(self.path / ARCHIVE, lambda line: trace_from_line(line, archived=True))
        active = _records(self.path / ACTIVE, lambda line: trace_from_line(line, archived=False))
        archived = {record.raw_trace.id: record for record in archive}
        current = {record.raw_trace.id: record for record in active}
        yield from (record for id_, record in archived.items() if id_ not in current)
        yield from current.values()
        yield from _records(self.path / EPISODES, episode_from_line)
        yield from _records(self.path / FACTS, fact_from_line)

    def write(
        self, active: Sequence[Line], archive: Sequence[Line], episodes: Sequence[Line], facts: Sequence[Line]
    ) -> None:
        """Replaces the content of all files."""
        self.update(active, archive, episodes, facts)
        # Last: before the active file was written, one of its traces may have existed in the old archive only.
        self._replace(ARCHIVE, archive)

    def update(
        self, active: Sequence[Line], archived: Sequence[Line], episodes: Sequence[Line], facts: Sequence[Line]
    ) -> None:
        """Appends the missing traces of `archived` to the archive, and replaces the content of the other files.

        An unchanged file is not written. New lines at the end are appended instead of rewriting the file.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = ids_of(self.lines(ARCHIVE)) if archived else set()
        self._append(ARCHIVE, [line for line in archived if line["id"] not in known])
        for name, lines in ((ACTIVE, active), (EPISODES, episodes), (FACTS, facts)):
            existing = self.lines(name)
            if existing and existing == list(lines[: len(existing)]) and (self.path / name).exists():
                self._append(name, lines[len(existing) :])
            else:
                self._replace(name, lines)

    def _append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        if not lines:
            return
        self._before(f"append to {name}")
        with (self.path / name).open("ab+") as file:
            file.truncate(_complete_bytes(file.name))
            file.write(_text(lines))
            file.flush()
            os.fsync(file.fileno())

    def _replace(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        path, text = self.path / name, _text(lines)
        if path.exists() and path.read_bytes() == text:
            return
        if not path.exists() and not lines and name == ARCHIVE:
            return
        new = path.with_name(f".{name}.new")
        self._before(f"write a new {name}")
        with new.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._before(f"replace {name}")
        new.replace(path)
        sync_directory(self.path)


def _text(lines: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(f"{encode_json(line)}\n" for line in lines).encode()


def _complete_bytes(path: str) -> int:
    """Returns the size of a file without its incomplete last line."""
    content = Path(path).read_bytes()
    return content.rfind(b"\n") + 1


def _records(
    path: Path, record: Callable[[Line], traces_service_pb2.TraceRecord]
) -> Iterator[traces_service_pb2.TraceRecord]:
    for number, line in read_lines(path, skip_incomplete=True):
        try:
            yield record(line)
        except InvalidArgument as error:
            raise line_error(path, number, error.message) from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            # A number is out of range, or a text has a character that UTF-8 does not have.
            raise line_error(path, number, "a value cannot be stored: out of range, or not valid text.") from error


class Mirror:
    """Copies the memory of an agent to its trace directory.

    `write` reads everything. `refresh` reads the context window, the episodes, the facts, and new traces only, so it
    does not see changes and deletions of archived traces.
    """

    def __init__(
        self, traces: TracesClient, agent_id: str, directory: TraceDirectory, scope_names: Sequence[str] = ()
    ) -> None:
        """Takes the agent, and the named scopes whose episodes and facts are copied, too."""
        self._traces = traces
        self._agent_id = agent_id
        self._directory = directory
        self._scope_names = scope_names
        self._newest_turn: str | None = None

    async def write(self) -> int:
        """Writes all files. Returns the total number of their lines."""
        newest = await self._newest_turn_id()
        active, archive, episodes, facts = await self._export()
        self._directory.write(active, archive, episodes, facts)
        self._newest_turn = newest
        return len(active) + len(archive) + len(episodes) + len(facts)

    async def refresh(self) -> None:
        """Updates the files after `write`."""
        newest = await self._newest_turn_id()
        try:
            archived = [trace async for trace in self._new_traces() if trace.archived]
        except NotFound:
            # The last known turn was deleted.
            await self.write()
            return
        active, _, episodes, facts = await self._export(archived=False)
        departed = {line["turn_id"] for line in self._directory.lines(ACTIVE)} - {line["turn_id"] for line in active}
        if self._newest_turn is not None:
            departed.add(self._newest_turn)
        archived += [trace async for trace in self._traces_of_turns(sorted(departed)) if trace.archived]
        lines = {trace.id: trace_to_line(trace) for trace in archived}
        self._directory.update(active, list(lines.values()), episodes, facts)
        self._newest_turn = newest

    async def follow(self, interval: float, stop: asyncio.Event, on_error: Callable[[MnemeshError], None]) -> None:
        """Refreshes the files every `interval` seconds until `stop` is set.

        While the server is unavailable, `on_error` receives the error of each attempt.
        """
        while not stop.is_set():
            try:
                await self.refresh()
            except (Unavailable, DeadlineExceeded) as error:
                on_error(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await stop.wait()

    async def _newest_turn_id(self) -> str | None:
        async for turn in self._traces.turns(self._agent_id, order="desc", limit=1):
            return turn.id
        return None

    async def _new_traces(self) -> AsyncIterator[traces_pb2.RawTrace]:
        """Yields the traces of new turns, some of which may have left the window already."""
        after = self._newest_turn
        async for turn in self._traces.turns(self._agent_id, after_id=after, include_traces=True):
            for trace in turn.traces:
                yield trace

    async def _traces_of_turns(self, turn_ids: list[str]) -> AsyncIterator[traces_pb2.RawTrace]:
        for start in range(0, len(turn_ids), TURNS_PER_REQUEST):
            batch = turn_ids[start : start + TURNS_PER_REQUEST]
            async for turn in self._traces.turns(self._agent_id, turn_ids=batch, include_traces=True):
                for trace in turn.traces:
                    yield trace

    async def _export(self, archived: bool | None = None) -> tuple[list[Line], list[Line], list[Line], list[Line]]:
        active: list[Line] = []
        archive: list[Line] = []
        episodes: list[Line] = []
        facts: list[Line] = []
        async for record in self._traces.export(
            self._agent_id, kinds=("raw_trace", "episode", "fact"), archived=archived, scope_names=self._scope_names
        ):
            match record.WhichOneof("record"):
                case "raw_trace":
                    trace = record.raw_trace
                    (archive if trace.archived else active).append(trace_to_line(trace))
                case "episode":
                    episodes.append(episode_to_line(record.episode))
                case "fact":
                    facts.append(fact_to_line(record.fact))
        return active, archive, episodes, facts
