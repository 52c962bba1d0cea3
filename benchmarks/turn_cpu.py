"""Measures the CPU time of one-step turns by size of the window: `python -m benchmarks.turn_cpu`."""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.agents import Connection, create_agent
from benchmarks.mesh import fake_model, running_mesh
from benchmarks.processes import difference
from benchmarks.turns import wave

_TURNS_PER_WAVE = 10
_OWN = ("fake model", "load")
"""Processes that are not services."""


async def measure(data_dir: Path, windows: list[int], waves: int, *, tls: bool = False) -> dict[int, dict[str, float]]:
    """Returns the CPU milliseconds of one turn by window and process: the median of waves of ten turns.

    The window is put back between waves, so it holds at most 20 messages more than stated.
    """
    async with (
        fake_model() as model,
        running_mesh(data_dir, model, tls=tls) as mesh,
        Connection(mesh.config) as connection,
    ):
        found: dict[int, dict[str, float]] = {}
        agents = [await create_agent(connection, model="one-step", stored=size, window=size) for size in windows]
        costs: dict[int, list[dict[str, float]]] = {size: [] for size in windows}
        for number in range(waves + 1):
            for size, agent in zip(windows, agents, strict=True):
                await agent.trim(connection)
                await wave(connection, [agent], 1)
                before = mesh.processes.cpu_ms()
                await wave(connection, [agent], _TURNS_PER_WAVE)
                if number:  # the first wave warms up
                    costs[size].append(difference(before, mesh.processes.cpu_ms()))
        for size, waves_of in costs.items():
            found[size] = {name: median(one[name] for one in waves_of) / _TURNS_PER_WAVE for name in waves_of[0]}
        return found


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turn_cpu", description=__doc__)
    parser.add_argument("--windows", type=int, nargs="+", default=[10, 20, 101], help="messages in the window")
    parser.add_argument("--waves", type=int, default=10, help="waves of ten turns (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="with mutual TLS between all processes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemesh-turn-cpu-") as data_dir:
        found = uvloop.run(measure(Path(data_dir), given.windows, given.waves, tls=given.tls))
    for size, by_process in found.items():
        services = {name: value for name, value in by_process.items() if name not in _OWN}
        parts = "  ".join(f"{name} {value:.2f}" for name, value in services.items())
        print(f"window {size}: {sum(services.values()):.2f} ms  ({parts})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
