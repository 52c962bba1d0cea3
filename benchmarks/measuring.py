"""Carries out a plan on a mesh: latencies, throughput, CPU, and what a turn calls."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Final

from benchmarks.agents import Connection, MeasuredAgent, make_agent
from benchmarks.mesh import RunningMesh
from benchmarks.plan import TURNS_BETWEEN_TRIMS, Plan, Scenario, Script
from benchmarks.processes import difference
from benchmarks.turns import TimedTurn, wave

_INDEXED_BEHIND_CALLS: Final = ("recall", "archival")
_QUIET_SECONDS: Final = 0.4
"""Longer than recall gathers messages before it indexes them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a scenario came to. Milliseconds; CPU per turn, by process."""

    scenario: Scenario
    turns: list[TimedTurn]
    wall_seconds: float
    cpu_ms: Mapping[str, float]

    @property
    def turns_per_second(self) -> float:
        """Of all agents together."""
        return len(self.turns) / self.wall_seconds


class Fleet:
    """Agents by what they were made for: made once, and measured in every scenario that they fit."""

    def __init__(self, mesh: RunningMesh, connection: Connection) -> None:
        self._mesh = mesh
        self._connection = connection
        self._made: dict[tuple[object, ...], list[MeasuredAgent]] = {}

    async def agents(self, scenario: Scenario) -> Sequence[MeasuredAgent]:
        """The scenario's agents, with their history stored and indexed."""
        kind = (scenario.script, scenario.stored, scenario.window, scenario.policy)
        made = self._made.setdefault(kind, [])
        while len(made) < scenario.agents:
            agent = await make_agent(
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
    """Runs a scenario in waves, between which windows are put back while the clocks stand."""
    agents = await fleet.agents(scenario)
    each = TURNS_BETWEEN_TRIMS[scenario.script]
    await wave(connection, agents, min(each, warm_up), streamed=scenario.streamed)
    timed: list[TimedTurn] = []
    wall, cpu = 0.0, Counter[str]()
    for done in range(0, scenario.turns, each):
        for agent in agents:
            await agent.trim(connection)
        await mesh.processes.until_idle(_INDEXED_BEHIND_CALLS, quiet_seconds=_QUIET_SECONDS)
        before, began = mesh.processes.cpu_ms(), time.perf_counter()
        timed += await wave(connection, agents, min(each, scenario.turns - done), streamed=scenario.streamed)
        wall += time.perf_counter() - began
        # What the turns leave to be indexed behind them is theirs too.
        await mesh.processes.until_idle(_INDEXED_BEHIND_CALLS, quiet_seconds=_QUIET_SECONDS)
        cpu.update(difference(before, mesh.processes.cpu_ms()))
    return Measured(scenario, timed, wall, {name: total / len(timed) for name, total in cpu.items()})


async def count_calls(mesh: RunningMesh, connection: Connection, script: Script, turns: int) -> dict[str, float]:
    """Calls and transactions of one turn, by service, as the services' own metrics tell."""
    agent = await make_agent(connection, model=script, stored=10, window=10)
    await wave(connection, [agent], 1)
    before = mesh.counters()
    await wave(connection, [agent], turns)
    after = mesh.counters()
    return {name: (value - before.get(name, 0.0)) / turns for name, value in after.items() if value != before.get(name)}


async def carry_out(mesh: RunningMesh, plan: Plan) -> list[Measured]:
    """Every scenario of a plan, in order."""
    async with Connection(mesh.config) as connection:
        fleet = Fleet(mesh, connection)
        found = []
        for number, scenario in enumerate(plan.scenarios, 1):
            print(f"  {number}/{len(plan.scenarios)} {scenario}", file=sys.stderr)
            found.append(await measure(mesh, connection, fleet, scenario, plan.warm_up_turns))
        return found


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 95th of a hundred."""
    if len(values) == 1:
        return values[0], values[0]
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[94]
