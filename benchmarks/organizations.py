"""Measures whether the queued runs of one organization slow another: `python -m benchmarks.organizations`.

One organization starts many runs in the background, and the other takes turns, one after the other, before it and while
the runs are executed: first without a limit, then with one on the runs of an organization (MNEMESH_ORGANIZATION_RUNS).
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop
from mnemesh.agents.v1 import runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as runs
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id

from benchmarks.agents import Connection, MeasuredAgent, create_agent
from benchmarks.measurement import percentiles
from benchmarks.mesh import fake_model, running_mesh
from benchmarks.turns import TEXT, turn

_KEY: Final = "benchmark-of-organizations-that-share-a-mesh"
_WARM_UP: Final = 5
_HEADINGS: Final = (
    "| runs at once | p50 ms, alone | p50 ms, beside | p95 ms, alone | p95 ms, beside | p95 | executed beside |"
)


async def flood(connection: Connection, agents: Sequence[MeasuredAgent], each: int) -> None:
    """Starts runs of all agents in the background."""
    part = message_pb2.ContentPart(text=message_pb2.TextPart(text=TEXT))
    message = runs_pb2.InputMessage(content=[part])
    for _ in range(each):
        requests = (runs.StartRunRequest(agent_id=agent.id, messages=[message]) for agent in agents)
        await asyncio.gather(*(connection.runs.StartRun(request) for request in requests))


async def ended(connection: Connection) -> int:
    """Returns how many of the newest thousand runs have ended."""
    page = await connection.runs.ListRuns(runs.ListRunsRequest(page_size=1_000))
    return sum(run.status >= runs_pb2.RUN_STATUS_COMPLETED for run in page.runs)


async def turns(connection: Connection, agent: MeasuredAgent, count: int) -> list[float]:
    """Returns the milliseconds of turns, one after the other."""
    return [(await turn(connection, agent)).whole_ms for _ in range(count)]


async def measure(data_dir: Path, model: tuple[str, int], limit: int, agents: int, count: int) -> str:
    """Returns a row of the table."""
    key_file = data_dir / "auth.keys"
    data_dir.mkdir(parents=True)
    key_file.write_text(_KEY)
    more = {"MNEMESH_AUTH_KEY_FILE": str(key_file), "MNEMESH_ORGANIZATION_RUNS": str(limit)}
    tokens = [mint_token(_KEY.encode(), Principal(new_id("org"), new_id("user")), 3_600) for _ in range(2)]
    async with (
        running_mesh(data_dir, model, processes=False, more=more) as mesh,
        Connection(mesh.config, tokens[0]) as ours,
        Connection(mesh.config, tokens[1]) as theirs,
    ):
        mine = await create_agent(ours, model="one-step", stored=20, window=20)
        others = [await create_agent(theirs, model="one-step", stored=20, window=20) for _ in range(agents)]
        await turns(ours, mine, _WARM_UP)
        alone = await turns(ours, mine, count)
        await flood(theirs, others, 10)
        before = await ended(theirs)
        beside = await turns(ours, mine, count)
        executed = await ended(theirs) - before
    (p50, p95), (p50_beside, p95_beside) = percentiles(alone), percentiles(beside)
    cells = [f"{value:.0f}" for value in (p50, p50_beside, p95, p95_beside)]
    return f"| {limit or 'no limit'} | {' | '.join(cells)} | {(p95_beside / p95 - 1) * 100:+.0f} % | {executed} |"


async def benchmark(data_dir: Path, seconds: float, limit: int, agents: int, count: int) -> list[str]:
    """Returns the lines of the table."""
    lines = [_HEADINGS, "|---|--:|--:|--:|--:|--:|--:|"]
    async with fake_model(seconds) as model:
        for most in (0, limit):
            lines.append(await measure(data_dir / str(most), model, most, agents, count))
            print(f"  {lines[-1]}", file=sys.stderr)
    return lines


def main() -> int:
    """Parses the arguments, runs the benchmark and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.organizations", description=__doc__)
    parser.add_argument("--limit", type=int, default=4, help="runs of an organization at once (%(default)s)")
    parser.add_argument("--agents", type=int, default=100, help="agents with ten queued runs each (%(default)s)")
    parser.add_argument("--turns", type=int, default=30, help="measured turns (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="the time of an answer of the model (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemesh-bench-") as data_dir:
        try:
            lines = uvloop.run(benchmark(Path(data_dir), given.seconds, given.limit, given.agents, given.turns))
        except (StartupError, MnemeshError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
