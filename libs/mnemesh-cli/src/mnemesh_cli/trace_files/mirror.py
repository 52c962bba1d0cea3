"""The export of an agent's memory to files, once or continuously."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from mnemesh.recall.v1 import traces_pb2
from mnemesh_cli.json_lines import Line
from mnemesh_cli.trace_files.convert import episode_to_line, fact_to_line, trace_to_line
from mnemesh_cli.trace_files.directory import ACTIVE, TraceDirectory
from mnemesh_client.traces import TracesClient
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, NotFound, Unavailable

TURNS_PER_REQUEST = 100


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
