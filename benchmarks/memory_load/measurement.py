"""Runs probes and measures the time of each call, the CPU of each process, and the number of results."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from benchmarks.measurement import percentiles
from benchmarks.memory_load.load import Loaded
from benchmarks.memory_load.probes import Probe
from benchmarks.memory_services import RunningServices
from benchmarks.processes import difference

WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Timed:
    """The result of a probe, in milliseconds per call."""

    name: str
    scope: str
    aim_ms: float | None
    calls: int
    p50_ms: float
    p95_ms: float
    cpu_ms: Mapping[str, float]
    found: float
    """The mean number of results of a call."""


async def measure(to: RunningServices, probe: Probe, times: int) -> Timed:
    """Runs the calls sequentially, after a few for warm-up."""
    services = ("recall", "archival")
    async with probe.opened(WARM_UP + times) as call:
        for number in range(WARM_UP):
            await call(number)
        await to.processes.until_idle(services, quiet_seconds=0.4)
        before, took, found = to.processes.cpu_ms(), [], []
        for number in range(WARM_UP, WARM_UP + times):
            started = time.perf_counter()
            found.append(await call(number))
            took.append((time.perf_counter() - started) * 1e3)
        if probe.writes:
            await to.processes.until_idle(services, quiet_seconds=0.4)
        cpu = difference(before, to.processes.cpu_ms())
    p50, p95 = percentiles(took)
    each = {name: round(total / times, 2) for name, total in cpu.items()}
    return Timed(probe.name, probe.scope, probe.aim_ms, times, round(p50, 2), round(p95, 2), each, mean(found))


async def measure_all(to: RunningServices, loaded: Loaded, probes: Sequence[Probe], times: int) -> dict[str, Any]:
    """Runs all probes and records memory before and after, and disk usage."""
    memory = {"at start": _memory(to)}
    timed = []
    for number, probe in enumerate(probes, 1):
        print(f"  {number}/{len(probes)} {probe.name}, {probe.scope}", file=sys.stderr, flush=True)
        timed.append(await measure(to, probe, times))
    memory["at end"] = _memory(to)
    return {
        "engine": to.engine,
        "dataset": asdict(loaded.dataset),
        "load": loaded.figures,
        "calls": [asdict(one) for one in timed],
        "memory_mb": memory,
        "disk_mb": {name: round(value, 1) for name, value in (await to.disk_mb()).items()},
    }


def _memory(to: RunningServices) -> dict[str, dict[str, float]]:
    resident, own = to.processes.proportional_mb(), to.processes.own_mb()
    return {name: {"resident": round(resident[name], 1), "own": round(own[name], 1)} for name in resident}
