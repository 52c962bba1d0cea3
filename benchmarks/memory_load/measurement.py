"""Times the measured calls, and formats the results as tables."""

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


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the whole report as Markdown."""
    machine = report["machine"]
    head = (
        f"{machine['cpus']} cpus, load {machine['load_average']:.1f}, Python {machine['python']}, {machine['platform']}"
    )
    return "\n\n".join((head, _calls(report["stores"]), _sizes(report["stores"])))


def _calls(stores: Sequence[Mapping[str, Any]]) -> str:
    """Returns a row for each kind of call: p50 / p95 and the CPU of all processes, for each store."""
    head = ["call", "looks at", "aim"]
    for store in stores:
        head += [f"{_title(store)}: p50 / p95 ms", "CPU ms"]
    lines = [_row(head), _row(["---", "---", *("--:" for _ in head[2:])])]
    for position, first in enumerate(stores[0]["calls"]):
        cells = [first["name"], first["scope"], "" if first["aim_ms"] is None else f"{first['aim_ms']:g}"]
        for store in stores:
            one = store["calls"][position]
            cells += [f"{one['p50_ms']:.1f} / {one['p95_ms']:.1f}", f"{sum(one['cpu_ms'].values()):.1f}"]
        lines.append(_row(cells))
    return "\n".join(lines)


def _sizes(stores: Sequence[Mapping[str, Any]]) -> str:
    lines = [_row(["store", "stored and indexed", "resident MB (own)", "disk MB"]), _row(["---"] * 4)]
    for store in stores:
        memory, disk, load = store["memory_mb"]["at end"], store["disk_mb"], store["load"]
        stored = store["dataset"]["messages"] / load["messages_seconds"]
        indexed = store["dataset"]["messages"] / load["messages_indexed_seconds"]
        passages = store["dataset"]["passages"] / load["passages_seconds"]
        lines.append(
            _row(
                [
                    _title(store),
                    f"{stored:,.0f} messages/s, {indexed:,.0f} with vectors; {passages:,.0f} passages/s",
                    ", ".join(f"{name} {mb['resident']:,.0f} ({mb['own']:,.0f})" for name, mb in memory.items()),
                    ", ".join(f"{name} {mb:,.0f}" for name, mb in disk.items()),
                ]
            )
        )
    return "\n".join(lines)


def _title(store: Mapping[str, Any]) -> str:
    return f"{store['engine']}, {store['dataset']['messages']:,}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
