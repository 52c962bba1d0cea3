"""Carries probes out: the time of each call, the CPU of each process, and what was found."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from benchmarks.measuring import percentiles
from benchmarks.processes import difference
from benchmarks.tiers.loading import Loaded
from benchmarks.tiers.probes import Probe
from benchmarks.tiers.servers import Running

WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Timed:
    """What a probe came to. Milliseconds, of a call."""

    name: str
    scope: str
    aim_ms: float | None
    calls: int
    p50_ms: float
    p95_ms: float
    cpu_ms: Mapping[str, float]
    found: float
    """Things that a call found, on average."""


async def measure(to: Running, probe: Probe, times: int) -> Timed:
    """Calls one after the other, behind a few that warm up."""
    rooms = ("recall", "archival")
    async with probe.opened(WARM_UP + times) as call:
        for number in range(WARM_UP):
            await call(number)
        await to.processes.until_idle(rooms, quiet_seconds=0.4)
        before, took, found = to.processes.cpu_ms(), [], []
        for number in range(WARM_UP, WARM_UP + times):
            began = time.perf_counter()
            found.append(await call(number))
            took.append((time.perf_counter() - began) * 1e3)
        if probe.writes:
            await to.processes.until_idle(rooms, quiet_seconds=0.4)
        cpu = difference(before, to.processes.cpu_ms())
    p50, p95 = percentiles(took)
    each = {name: round(total / times, 2) for name, total in cpu.items()}
    return Timed(probe.name, probe.scope, probe.aim_ms, times, round(p50, 2), round(p95, 2), each, mean(found))


async def measure_all(to: Running, loaded: Loaded, probes: Sequence[Probe], times: int) -> dict[str, Any]:
    """Every probe, with memory before and after, and the disk."""
    memory = {"at start": _memory(to)}
    timed = []
    for number, probe in enumerate(probes, 1):
        print(f"  {number}/{len(probes)} {probe.name}, {probe.scope}", file=sys.stderr, flush=True)
        timed.append(await measure(to, probe, times))
    memory["at end"] = _memory(to)
    return {
        "engine": to.engine,
        "stock": asdict(loaded.stock),
        "loading": loaded.figures,
        "calls": [asdict(one) for one in timed],
        "memory_mb": memory,
        "disk_mb": {name: round(value, 1) for name, value in (await to.disk_mb()).items()},
    }


def _memory(to: Running) -> dict[str, dict[str, float]]:
    resident, own = to.processes.proportional_mb(), to.processes.own_mb()
    return {name: {"resident": round(resident[name], 1), "own": round(own[name], 1)} for name in resident}
