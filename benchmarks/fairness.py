"""Whether an agent with a long history slows the others: `python -m benchmarks.fairness [--stored 50000]`.

Some agents with little history take turns, and beside them one more: in every other wave one that has as little, in the
others one that has a long history. What the others' turns take must not depend on which it is.
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

from benchmarks.agents import Connection, MeasuredAgent, make_agent
from benchmarks.measuring import percentiles
from benchmarks.mesh import RunningMesh, fake_model, running_mesh
from benchmarks.plan import TURNS_BETWEEN_TRIMS, Script
from benchmarks.turns import wave

_STORED: Final = 100
_WINDOW: Final = 20
_IN_THE_BACKGROUND: Final = ("recall", "archival")
_HEADINGS: Final = "| turn of the others | p50 ms, short | p50 ms, long | p95 ms, short | p95 ms, long | p95 |"


@dataclass(frozen=True, slots=True)
class Lanes:
    """The agents of one script: the measured ones, and each that runs beside them."""

    script: Script
    others: Sequence[MeasuredAgent]
    short: MeasuredAgent
    long: MeasuredAgent


@dataclass(slots=True)
class Found:
    """Milliseconds of the others' turns."""

    beside_short: list[float] = field(default_factory=list)
    beside_long: list[float] = field(default_factory=list)

    def row(self, script: str) -> str:
        """A line of the table."""
        before, after = percentiles(self.beside_short), percentiles(self.beside_long)
        cells = [f"{value:.1f}" for value in (before[0], after[0], before[1], after[1])]
        return f"| {script} | {' | '.join(cells)} | {(after[1] / before[1] - 1) * 100:+.1f} % |"


async def make_lanes(connection: Connection, script: Script, others: int, stored: int) -> Lanes:
    """Makes the agents of a script, their history stored."""

    async def make(count: int) -> MeasuredAgent:
        return await make_agent(connection, model=script, stored=count, window=_WINDOW)

    small = [await make(_STORED) for _ in range(others + 1)]
    return Lanes(script, small[:-1], small[-1], await make(stored))


async def measure(mesh: RunningMesh, connection: Connection, lanes: Lanes, rounds: int) -> Found:
    """Waves beside the one and beside the other by turns, so that both see the same machine."""
    found, each = Found(), TURNS_BETWEEN_TRIMS[lanes.script]
    for number in range(rounds + 1):
        for beside, times in ((lanes.short, found.beside_short), (lanes.long, found.beside_long)):
            for agent in (*lanes.others, beside):
                await agent.trim(connection)
            await mesh.processes.until_idle(_IN_THE_BACKGROUND, quiet_seconds=0.4)
            timed, _ = await asyncio.gather(wave(connection, lanes.others, each), wave(connection, [beside], each))
            if number:  # the first wave of each warms up
                times.extend(turn.whole_ms for turn in timed)
    return found


async def benchmark(data_dir: Path, others: int, stored: int, rounds: int) -> list[str]:
    """The table's lines."""
    lines = [_HEADINGS, "|---|--:|--:|--:|--:|--:|"]
    scripts: tuple[Script, ...] = ("one-step", "five-tools")
    async with (
        fake_model() as model,
        running_mesh(data_dir, model) as mesh,
        Connection(mesh.config) as connection,
    ):
        for script in scripts:
            lanes = await make_lanes(connection, script, others, stored)
            print(f"  {script}: {others} agents beside one with {stored} messages", file=sys.stderr)
            lines.append((await measure(mesh, connection, lanes, rounds)).row(script))
    return lines


def main() -> int:
    """Reads the arguments, runs and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--stored", type=int, default=50_000, help="messages of the long history (%(default)s)")
    parser.add_argument("--others", type=int, default=8, help="agents beside it (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="measured waves beside each (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemesh-bench-") as data_dir:
        try:
            lines = uvloop.run(benchmark(Path(data_dir), given.others, given.stored, given.rounds))
        except (StartupError, MnemeshError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
