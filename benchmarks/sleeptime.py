"""Measures sleep-time: `python -m benchmarks.sleeptime`.

First, what it adds to a foreground turn: turns of agents with and without partners alternate. The partners do not run
meanwhile, because their frequency is too high, so the difference is the cost of counting the turn. Then many agents
with partners at once: each has one turn, which starts its partner.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import (
    agents_pb2,
    agents_service_pb2,
    groups_pb2,
    groups_service_pb2,
    runs_pb2,
    runs_service_pb2,
)

from benchmarks.agents import Connection, MeasuredAgent, create_agent
from benchmarks.mesh import fake_model, running_mesh
from benchmarks.processes import difference
from benchmarks.turns import wave

_TURNS_PER_WAVE = 10
_OWN = ("fake model", "load")
"""Processes that are not services."""


async def measure(data_dir: Path, window: int, waves: int) -> dict[str, dict[str, float]]:
    """Returns the CPU milliseconds of one turn by kind of agent and process: the median of waves of ten turns."""
    async with (
        fake_model() as model,
        running_mesh(data_dir, model) as mesh,
        Connection(mesh.config) as connection,
    ):
        agents = {
            name: await create_agent(connection, model="one-step", stored=window, window=window)
            for name in ("without partners", "with a partner")
        }
        await _add_partner(connection, agents["with a partner"])
        costs: dict[str, list[dict[str, float]]] = {name: [] for name in agents}
        for number in range(waves + 1):
            for name, agent in agents.items():
                await agent.trim(connection)
                await wave(connection, [agent], 1)
                before = mesh.processes.cpu_ms()
                await wave(connection, [agent], _TURNS_PER_WAVE)
                if number:  # the first wave warms up
                    costs[name].append(difference(before, mesh.processes.cpu_ms()))
        return {
            name: {process: median(one[process] for one in found) / _TURNS_PER_WAVE for process in found[0]}
            for name, found in costs.items()
        }


@dataclass(frozen=True, slots=True)
class Crowd:
    """Seconds until all turns of many agents had ended, and until their partners had ended, with the partners' runs."""

    turns_seconds: float
    partners_seconds: float
    completed_runs: int


async def measure_crowd(data_dir: Path, count: int) -> Crowd:
    """Runs one turn of each of many agents at once, and waits for the partners."""
    async with (
        fake_model() as model,
        running_mesh(data_dir, model) as mesh,
        Connection(mesh.config) as connection,
    ):
        agents = [await create_agent(connection, model="one-step", stored=4, window=4) for _ in range(count)]
        for agent in agents:
            await _add_partner(connection, agent, frequency=1)
        started = time.perf_counter()
        await wave(connection, agents, 1)
        ended = time.perf_counter()
        while len(runs := await _partner_runs(connection)) < count or any(
            run.status in (runs_pb2.RUN_STATUS_CREATED, runs_pb2.RUN_STATUS_RUNNING) for run in runs
        ):
            await asyncio.sleep(0.05)
        completed = sum(run.status == runs_pb2.RUN_STATUS_COMPLETED for run in runs)
        return Crowd(ended - started, time.perf_counter() - started, completed)


async def _partner_runs(connection: Connection) -> list[runs_pb2.Run]:
    filter_ = runs_service_pb2.RunFilter(origins=[runs_pb2.RUN_ORIGIN_SLEEPTIME])
    request = runs_service_pb2.ListRunsRequest(page_size=1_000, filter=filter_)
    return list((await connection.runs.ListRuns(request)).runs)


async def _add_partner(connection: Connection, agent: MeasuredAgent, frequency: int = 10_000) -> None:
    await connection.agents.UpdateAgent(
        agents_service_pb2.UpdateAgentRequest(
            agent=agents_pb2.Agent(id=agent.id, enable_sleeptime=True),
            update_mask=FieldMask(paths=["enable_sleeptime"]),
        )
    )
    filter_ = groups_service_pb2.GroupFilter(agent_id=agent.id)
    (group,) = (await connection.groups.ListGroups(groups_service_pb2.ListGroupsRequest(filter=filter_))).groups
    manager = groups_pb2.SleeptimeManager(manager_agent_id=agent.id, sleeptime_agent_frequency=frequency)
    await connection.groups.UpdateGroup(
        groups_service_pb2.UpdateGroupRequest(
            group=groups_pb2.Group(id=group.id, manager_config=groups_pb2.ManagerConfig(sleeptime=manager)),
            update_mask=FieldMask(paths=["manager_config"]),
        )
    )


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sleeptime", description=__doc__)
    parser.add_argument("--window", type=int, default=20, help="messages in the window (%(default)s)")
    parser.add_argument("--waves", type=int, default=20, help="waves of ten turns (%(default)s)")
    parser.add_argument("--agents", type=int, default=100, help="agents with partners at once (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemesh-sleeptime-") as data_dir:
        found = uvloop.run(measure(Path(data_dir), given.window, given.waves))
    totals = []
    for name, by_process in found.items():
        services = {process: value for process, value in by_process.items() if process not in _OWN}
        totals.append(sum(services.values()))
        parts = "  ".join(f"{process} {value:.2f}" for process, value in services.items())
        print(f"{name}: {totals[-1]:.2f} ms  ({parts})")
    print(f"added by sleep-time: {totals[1] - totals[0]:+.2f} ms, {totals[1] / totals[0] - 1:+.1%}")
    with tempfile.TemporaryDirectory(prefix="mnemesh-sleeptime-") as data_dir:
        crowd = uvloop.run(measure_crowd(Path(data_dir), given.agents))
    print(
        f"{given.agents} agents: their turns took {crowd.turns_seconds:.1f} s; after {crowd.partners_seconds:.1f} s "
        f"{crowd.completed_runs} runs of partners had completed"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
