"""Formats the results of a benchmark as JSON and as tables."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from benchmarks.measurement import Measured, percentiles
from benchmarks.plan import Script


def as_json(
    measured: Sequence[Measured],
    *,
    start_seconds: float,
    memory_mb: Mapping[str, Mapping[str, float]],
    calls: Mapping[Script, Mapping[str, float]],
) -> dict[str, Any]:
    """Returns all results with a description of the machine."""
    return {
        "machine": {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg()[0],
        },
        "start_seconds": round(start_seconds, 2),
        "memory_mb": {
            when: {name: round(value, 1) for name, value in figures.items()} for when, figures in memory_mb.items()
        },
        "scenarios": [_scenario(one) for one in measured],
        "per_turn": {script: dict(sorted(counts.items())) for script, counts in calls.items()},
    }


def _scenario(measured: Measured) -> dict[str, Any]:
    return {
        **asdict(measured.scenario),
        "turns": len(measured.turns),
        "turn_ms": _spread(one.whole_ms for one in measured.turns),
        "first_event_ms": _spread(one.accepted_ms for one in measured.turns),
        "first_model_event_ms": _spread(one.model_ms for one in measured.turns),
        "turns_per_second": round(measured.turns_per_second, 1),
        "cpu_ms_per_turn": {name: round(value, 2) for name, value in measured.cpu_ms.items()},
    }


def _spread(values: Iterable[float]) -> dict[str, float]:
    p50, p95 = percentiles(list(values))
    return {"p50": round(p50, 2), "p95": round(p95, 2)}


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the report as tables."""
    machine = report["machine"]
    head = (
        f"{machine['cpus']} cpus, load {machine['load_average']:.1f}, Python {machine['python']}, {machine['platform']}"
    )
    return "\n\n".join((head, _turns(report["scenarios"]), _cpu(report), _counts(report["per_turn"]), _whole(report)))


def _name(scenario: Mapping[str, Any]) -> list[str]:
    kind = f"{scenario['script']} {scenario['policy']}{' streamed' if scenario['streamed'] else ''}"
    return [kind, str(scenario["agents"]), f"{scenario['stored']:,}", str(scenario["window"])]


_NAMES = ["turn", "agents", "stored", "window"]


def _turns(scenarios: Sequence[Mapping[str, Any]]) -> str:
    head = [*_NAMES, "p50 ms", "p95 ms", "turns/s", "first event p50", "p95", "from model p50", "p95"]
    rows = [
        [
            *_name(one),
            f"{one['turn_ms']['p50']:.1f}",
            f"{one['turn_ms']['p95']:.1f}",
            f"{one['turns_per_second']:.1f}",
            *(f"{one[key][part]:.1f}" for key in ("first_event_ms", "first_model_event_ms") for part in ("p50", "p95")),
        ]
        for one in scenarios
    ]
    return _table(head, rows)


def _cpu(report: Mapping[str, Any]) -> str:
    names = list(report["memory_mb"]["resident_at_start"])
    rows = [
        [
            *_name(one),
            f"{sum(one['cpu_ms_per_turn'].values()):.1f}",
            *(f"{one['cpu_ms_per_turn'][name]:.1f}" for name in names),
        ]
        for one in report["scenarios"]
    ]
    return _table([*_NAMES, "CPU ms/turn", *names], rows)


def _counts(per_turn: Mapping[str, Mapping[str, float]]) -> str:
    names = sorted({name for counts in per_turn.values() for name in counts})
    rows = [[name, *(f"{counts.get(name, 0):.2f}" for counts in per_turn.values())] for name in names]
    return _table(["per turn", *per_turn], rows)


def _whole(report: Mapping[str, Any]) -> str:
    lines = [f"ready after {report['start_seconds']:.1f} s"]
    for when, figures in report["memory_mb"].items():
        services = {name: value for name, value in figures.items() if name not in ("fake model", "load")}
        parts = ", ".join(f"{name} {value:.0f}" for name, value in services.items())
        lines.append(f"{when.replace('_', ' ')}: {sum(services.values()):.0f} MB ({parts})")
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others))).rstrip()

    return "\n".join(map(line, (head, *rows)))
