"""The files of one agent in `<base>/agents/<agent_id>/`. A crash at any moment of a write loses no trace."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mnemesh.recall.v1 import traces_pb2, traces_service_pb2
from mnemesh_cli.json_lines import Line, encode_json, line_error, read_lines, sync_directory
from mnemesh_cli.trace_files.convert import (
    episode_from_line,
    episode_to_line,
    fact_from_line,
    fact_to_line,
    ids_of,
    trace_from_line,
    trace_to_line,
)
from mnemesh_client.traces import TracesClient
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, MnemeshError, NotFound, Unavailable

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
    def of_agent(cls, base: Path, agent_id: str, *, before: Callable[[str], None] = _ignore) -> "TraceDirectory":
        """Returns the directory of an agent in a base directory, which may have many."""
        return cls(base / "agents" / agent_id, before=before)

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
        self,
        active: Sequence[Line],
        archive: Sequence[Line],
        episodes: Sequence[Line],
        facts: Sequence[Line],
    ) -> None:
        """Replaces the content of all files."""
        self.update(active, archive, episodes, facts)
        # Last: before the active file was written, one of its traces may have existed in the old archive only.
        self._replace(ARCHIVE, archive)

    def update(
        self,
        active: Sequence[Line],
        archived: Sequence[Line],
        episodes: Sequence[Line],
        facts: Sequence[Line],
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
            self._agent_id,
            kinds=("raw_trace", "episode", "fact"),
            archived=archived,
            scope_names=self._scope_names,
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
