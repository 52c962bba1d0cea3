"""Measures whether an agent with a long history slows other agents: `python -m benchmarks.fairness [--stored 50000]`.

Several agents with a short history take turns, together with one more agent: in alternating waves one with a short and
one with a long history. The durations of the other agents' turns should not depend on which one it is.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError

from benchmarks.agents import Connection, MeasuredAgent, create_agent
from benchmarks.measurement import percentiles
from benchmarks.mesh import RunningMesh, fake_model, running_mesh
from benchmarks.plan import Script
from benchmarks.turns import wave

_STORED: Final = 100
_WINDOW: Final = 20
_TURNS_BETWEEN_TRIMS: Final[dict[Script, int]] = {"one-step": 10, "five-tools": 2}
_IN_THE_BACKGROUND: Final = ("recall", "archival")
_HEADINGS: Final = "| turn of the other agents | p50 ms, short | p50 ms, long | p95 ms, short | p95 ms, long | p95 |"


@dataclass(frozen=True, slots=True)
class AgentSet:
    """The agents of one script: the measured ones, and the two additional ones."""

    script: Script
    others: Sequence[MeasuredAgent]
    short: MeasuredAgent
    long: MeasuredAgent


@dataclass(slots=True)
class Durations:
    """Durations of the other agents' turns in milliseconds."""

    with_short: list[float] = field(default_factory=list)
    with_long: list[float] = field(default_factory=list)

    def row(self, script: str) -> str:
        """Returns a row of the table."""
        before, after = percentiles(self.with_short), percentiles(self.with_long)
        cells = [f"{value:.1f}" for value in (before[0], after[0], before[1], after[1])]
        return f"| {script} | {' | '.join(cells)} | {(after[1] / before[1] - 1) * 100:+.1f} % |"


async def create_agents(connection: Connection, script: Script, others: int, stored: int) -> AgentSet:
    """Creates the agents of a script and stores their history."""

    async def make(count: int) -> MeasuredAgent:
        return await create_agent(connection, model=script, stored=count, window=_WINDOW)

    small = [await make(_STORED) for _ in range(others + 1)]
    return AgentSet(script, small[:-1], small[-1], await make(stored))


async def measure(mesh: RunningMesh, connection: Connection, lanes: AgentSet, rounds: int) -> Durations:
    """Runs alternating waves with each additional agent, so that both are measured under the same conditions."""
    found, each = Durations(), _TURNS_BETWEEN_TRIMS[lanes.script]
    for number in range(rounds + 1):
        for additional, times in ((lanes.short, found.with_short), (lanes.long, found.with_long)):
            for agent in (*lanes.others, additional):
                await agent.trim(connection)
            await mesh.processes.until_idle(_IN_THE_BACKGROUND, quiet_seconds=0.4)
            timed, _ = await asyncio.gather(wave(connection, lanes.others, each), wave(connection, [additional], each))
            if number:  # the first wave of each is a warm-up
                times.extend(turn.whole_ms for turn in timed)
    return found


async def benchmark(data_dir: Path, others: int, stored: int, rounds: int) -> list[str]:
    """Returns the lines of the table."""
    lines = [_HEADINGS, "|---|--:|--:|--:|--:|--:|"]
    scripts: tuple[Script, ...] = ("one-step", "five-tools")
    async with (
        fake_model() as model,
        running_mesh(data_dir, model) as mesh,
        Connection(mesh.config) as connection,
    ):
        for script in scripts:
            lanes = await create_agents(connection, script, others, stored)
            print(f"  {script}: {others} agents and one with {stored} messages", file=sys.stderr)
            lines.append((await measure(mesh, connection, lanes, rounds)).row(script))
    return lines


def main() -> int:
    """Parses the arguments, runs the benchmark and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--stored", type=int, default=50_000, help="messages of the long history (%(default)s)")
    parser.add_argument("--others", type=int, default=8, help="other agents (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="measured waves with each (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemesh-bench-") as data_dir:
        try:
            lines = uvloop.run(benchmark(Path(data_dir), arguments.others, arguments.stored, arguments.rounds))
        except (StartupError, MnemeshError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
