"""The files of one agent, `<base>/agents/<agent_id>/`, written so that being killed at any moment loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mnemesh.recall.v1 import traces_service_pb2
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client.trace_files.convert import (
    Line,
    encoded,
    episode_record,
    fact_record,
    ids_of,
    trace_record,
)

ACTIVE: Final = "raw_traces.jsonl"
ARCHIVE: Final = "raw_traces_archive.jsonl"
EPISODES: Final = "episodic.jsonl"
FACTS: Final = "semantic.jsonl"


def _nothing(step: str) -> None:
    """Nobody wants to know."""


class TraceDirectory:
    """The traces of turns that a window shows, the archive of those that left it, episodes and facts.

    A trace that leaves the active file is in the archive before: at every moment, every trace is in one of them at
    least. What a reader finds in both counts once. Lines that were cut short by a crash are taken away by the next
    write, and passed over by readers.
    """

    def __init__(self, path: Path, *, before: Callable[[str], None] = _nothing) -> None:
        """The files under `path`; `before` is told of each step that changes a file, before it is done."""
        self.path = path
        self._before = before

    @classmethod
    def of_agent(cls, base: Path, agent_id: str, *, before: Callable[[str], None] = _nothing) -> TraceDirectory:
        """The directory of an agent under a base that may hold many."""
        return cls(base / "agents" / agent_id, before=before)

    def lines(self, name: str) -> list[Line]:
        """The lines of a file, none where there is no file.

        Raises:
            InvalidArgument: a line is no JSON object.
        """
        return list(_parsed(self.path / name))

    def records(self) -> Iterator[traces_service_pb2.TraceRecord]:
        """Everything, each trace once: archived ones, active ones, episodes, facts.

        Raises:
            InvalidArgument: a line is no JSON object, or not one of its file.
        """
        active = self.lines(ACTIVE)
        known = ids_of(active)
        archive = [line for line in self.lines(ARCHIVE) if line.get("id") not in known]
        yield from _records(ARCHIVE, _last_of_each(archive), lambda line: trace_record(line, archived=True))
        yield from _records(ACTIVE, _last_of_each(active), lambda line: trace_record(line, archived=False))
        yield from _records(EPISODES, self.lines(EPISODES), episode_record)
        yield from _records(FACTS, self.lines(FACTS), fact_record)

    def write(
        self,
        active: Sequence[Line],
        archive: Sequence[Line],
        episodes: Sequence[Line],
        facts: Sequence[Line],
    ) -> None:
        """Makes the files say just this."""
        self.update(active, archive, episodes, facts)
        # Only now: until the active file was written, the archive may have been the only place of one of its traces.
        self._replace(ARCHIVE, archive)

    def update(
        self,
        active: Sequence[Line],
        archived: Sequence[Line],
        episodes: Sequence[Line],
        facts: Sequence[Line],
    ) -> None:
        """Adds to the archive what it lacks of `archived`, and makes the other files say just this.

        A file that says it already is left alone, and one that only grew is added to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        known = ids_of(self.lines(ARCHIVE)) if archived else set()
        self._append(ARCHIVE, [line for line in archived if line["id"] not in known])
        for name, lines in ((ACTIVE, active), (EPISODES, episodes), (FACTS, facts)):
            there = self.lines(name)
            if there and there == list(lines[: len(there)]) and (self.path / name).exists():
                self._append(name, lines[len(there) :])
            else:
                self._replace(name, lines)

    def _append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        if not lines:
            return
        self._before(f"append to {name}")
        with (self.path / name).open("ab+") as file:
            file.truncate(_whole(file.name))
            file.write(_text(lines))
            file.flush()
            os.fsync(file.fileno())

    def _replace(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        path, text = self.path / name, _text(lines)
        if path.exists() and path.read_bytes() == text:
            return
        if not path.exists() and not lines and name == ARCHIVE:
            return
        fresh = path.with_name(f".{name}.new")
        self._before(f"write a new {name}")
        with fresh.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._before(f"replace {name}")
        fresh.replace(path)
        _sync(self.path)


def _text(lines: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(f"{encoded(line)}\n" for line in lines).encode()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole(path: str) -> int:
    """How much of a file ends with a line's end."""
    content = Path(path).read_bytes()
    return content.rfind(b"\n") + 1


def _parsed(path: Path) -> Iterator[Line]:
    if not path.exists():
        return
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    for number, text in enumerate(whole.split(b"\n") if whole else (), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(
                f"{path.name}, line {number}: not JSON.", field=path.name, line=str(number)
            ) from error
        if not isinstance(line, dict):
            raise InvalidArgument(f"{path.name}, line {number}: not an object.", field=path.name, line=str(number))
        yield line


def _last_of_each(lines: Sequence[Line]) -> list[Line]:
    """Each id once, by what its last line says, in the order of the first."""
    return list({line.get("id"): line for line in lines}.values())


def _records(
    name: str, lines: Sequence[Line], record: Callable[[Line], traces_service_pb2.TraceRecord]
) -> Iterator[traces_service_pb2.TraceRecord]:
    for number, line in enumerate(lines, start=1):
        try:
            yield record(line)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name}, record {number}: {error.message}", field=error.field) from error
