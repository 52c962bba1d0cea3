"""Keeps the files of an agent as its memory is: once, or for as long as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from mnemesh.recall.v1 import traces_pb2
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, NotFound, Unavailable

from mnemesh_client.trace_files.convert import Line, episode_line, fact_line, trace_line
from mnemesh_client.trace_files.directory import ACTIVE, TraceDirectory
from mnemesh_client.traces import TracesClient

TURNS_AT_ONCE = 100


class Mirror:
    """One agent and its directory.

    `refresh` costs what the window and the episodes and facts are, and what is new, not what the history is: it does
    not see that an archived trace was changed or deleted. `write` does.
    """

    def __init__(self, traces: TracesClient, agent_id: str, directory: TraceDirectory) -> None:
        self._traces = traces
        self._agent_id = agent_id
        self._directory = directory
        self._newest_turn: str | None = None

    async def write(self) -> int:
        """Makes the files say what the agent remembers; returns how many lines they have."""
        newest = await self._last_turn()
        active, archive, episodes, facts = await self._everything()
        self._directory.write(active, archive, episodes, facts)
        self._newest_turn = newest
        return len(active) + len(archive) + len(episodes) + len(facts)

    async def refresh(self) -> None:
        """Brings the files up to date after `write`."""
        newest = await self._last_turn()
        try:
            archived = [trace async for trace in self._new_traces() if trace.archived]
        except NotFound:
            # The turn to go on from was deleted.
            await self.write()
            return
        active, _, episodes, facts = await self._everything(archived=False)
        left = {line["turn_id"] for line in self._directory.lines(ACTIVE)} - {line["turn_id"] for line in active}
        if self._newest_turn is not None:
            left.add(self._newest_turn)
        archived += [trace async for trace in self._of_turns(sorted(left)) if trace.archived]
        kept = {trace.id: trace_line(trace) for trace in archived}
        self._directory.update(active, list(kept.values()), episodes, facts)
        self._newest_turn = newest

    async def follow(self, interval: float, stop: asyncio.Event, complain: Callable[[MnemeshError], None]) -> None:
        """Refreshes every so many seconds until `stop` is set; tells of a server that is away, and goes on."""
        while not stop.is_set():
            try:
                await self.refresh()
            except (Unavailable, DeadlineExceeded) as error:
                complain(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await stop.wait()

    async def _last_turn(self) -> str | None:
        async for turn in self._traces.turns(self._agent_id, order="desc", limit=1):
            return turn.id
        return None

    async def _new_traces(self) -> AsyncIterator[traces_pb2.RawTrace]:
        """The traces of the turns since the last time: some may have left the window already."""
        after = self._newest_turn
        async for turn in self._traces.turns(self._agent_id, after_id=after, include_traces=True):
            for trace in turn.traces:
                yield trace

    async def _of_turns(self, turn_ids: list[str]) -> AsyncIterator[traces_pb2.RawTrace]:
        for start in range(0, len(turn_ids), TURNS_AT_ONCE):
            some = turn_ids[start : start + TURNS_AT_ONCE]
            async for turn in self._traces.turns(self._agent_id, turn_ids=some, include_traces=True):
                for trace in turn.traces:
                    yield trace

    async def _everything(self, archived: bool | None = None) -> tuple[list[Line], list[Line], list[Line], list[Line]]:
        active: list[Line] = []
        archive: list[Line] = []
        episodes: list[Line] = []
        facts: list[Line] = []
        async for record in self._traces.export(
            self._agent_id, kinds=("raw_trace", "episode", "fact"), archived=archived
        ):
            match record.WhichOneof("record"):
                case "raw_trace":
                    trace = record.raw_trace
                    (archive if trace.archived else active).append(trace_line(trace))
                case "episode":
                    episodes.append(episode_line(record.episode))
                case "fact":
                    facts.append(fact_line(record.fact))
        return active, archive, episodes, facts
