"""Runs a plan on a mesh and measures latency, throughput, CPU time, and the calls of a turn."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Final

from benchmarks.agents import Connection, MeasuredAgent, create_agent
from benchmarks.mesh import RunningMesh
from benchmarks.plan import TURNS_BETWEEN_TRIMS, Plan, Scenario, Script
from benchmarks.processes import difference
from benchmarks.turns import TimedTurn, wave

_INDEXED_BEHIND_CALLS: Final = ("recall", "archival")
_QUIET_SECONDS: Final = 0.4
"""Longer than the time for which recall gathers messages before it indexes them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a scenario: milliseconds, and CPU per turn by process."""

    scenario: Scenario
    turns: list[TimedTurn]
    wall_seconds: float
    cpu_ms: Mapping[str, float]

    @property
    def turns_per_second(self) -> float:
        """Turns per second of all agents together."""
        return len(self.turns) / self.wall_seconds


class Fleet:
    """Agents by their configuration. They are created once and used in every matching scenario."""

    def __init__(self, mesh: RunningMesh, connection: Connection) -> None:
        self._mesh = mesh
        self._connection = connection
        self._made: dict[tuple[object, ...], list[MeasuredAgent]] = {}

    async def agents(self, scenario: Scenario) -> Sequence[MeasuredAgent]:
        """Returns the scenario's agents after their history is stored and indexed."""
        kind = (scenario.script, scenario.stored, scenario.window, scenario.policy)
        made = self._made.setdefault(kind, [])
        while len(made) < scenario.agents:
            agent = await create_agent(
                self._connection,
                model=scenario.script,
                stored=scenario.stored,
                window=scenario.window,
                policy=scenario.policy,
            )
            made.append(agent)
        return made[: scenario.agents]


async def measure(
    mesh: RunningMesh, connection: Connection, fleet: Fleet, scenario: Scenario, warm_up: int
) -> Measured:
    """Runs a scenario in waves and restores the windows between them, outside the measured time."""
    agents = await fleet.agents(scenario)
    each = TURNS_BETWEEN_TRIMS[scenario.script]
    await wave(connection, agents, min(each, warm_up), streamed=scenario.streamed)
    timed: list[TimedTurn] = []
    wall, cpu = 0.0, Counter[str]()
    for done in range(0, scenario.turns, each):
        for agent in agents:
            await agent.trim(connection)
        await mesh.processes.until_idle(_INDEXED_BEHIND_CALLS, quiet_seconds=_QUIET_SECONDS)
        before, started = mesh.processes.cpu_ms(), time.perf_counter()
        timed += await wave(connection, agents, min(each, scenario.turns - done), streamed=scenario.streamed)
        wall += time.perf_counter() - started
        # The indexing that follows the turns is included.
        await mesh.processes.until_idle(_INDEXED_BEHIND_CALLS, quiet_seconds=_QUIET_SECONDS)
        cpu.update(difference(before, mesh.processes.cpu_ms()))
    return Measured(scenario, timed, wall, {name: total / len(timed) for name, total in cpu.items()})


async def count_calls(mesh: RunningMesh, connection: Connection, script: Script, turns: int) -> dict[str, float]:
    """Returns the calls and transactions of one turn by service, from the services' metrics."""
    agent = await create_agent(connection, model=script, stored=10, window=10)
    await wave(connection, [agent], 1)
    before = mesh.counters()
    await wave(connection, [agent], turns)
    after = mesh.counters()
    return {name: (value - before.get(name, 0.0)) / turns for name, value in after.items() if value != before.get(name)}


async def run_plan(mesh: RunningMesh, plan: Plan) -> list[Measured]:
    """Runs every scenario of a plan in order."""
    async with Connection(mesh.config) as connection:
        fleet = Fleet(mesh, connection)
        found = []
        for number, scenario in enumerate(plan.scenarios, 1):
            print(f"  {number}/{len(plan.scenarios)} {scenario}", file=sys.stderr)
            found.append(await measure(mesh, connection, fleet, scenario, plan.warm_up_turns))
        return found


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 95th percentile."""
    if len(values) == 1:
        return values[0], values[0]
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[94]
