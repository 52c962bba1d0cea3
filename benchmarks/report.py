"""Formats the results of a benchmark as JSON and as tables."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from benchmarks.measurement import Measured, Version, percentiles


def machine() -> dict[str, Any]:
    """Describes the machine."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }


def engine_as_json(versions: Sequence[Version], services: Sequence[Measured]) -> dict[str, Any]:
    """Returns the results of one SQL engine."""
    return {
        "versions": {
            version.name: {
                "at_rest": asdict(version.at_rest) if version.at_rest else None,
                "memory_after_mb": round(version.memory_after_mb, 1),
                "rows": [_row(one) for one in version.rows],
            }
            for version in versions
        },
        "cpu_ms_by_service": [
            {"name": one.row.name, **{name: round(ms / len(one.timed), 2) for name, ms in one.cpu_ms.items()}}
            for one in services
        ],
    }


def _row(measured: Measured) -> dict[str, Any]:
    p50, p95 = percentiles(measured.milliseconds)
    return {
        **asdict(measured.row),
        "api": measured.api,
        "operations": len(measured.timed),
        "p50_ms": round(p50, 2),
        "p95_ms": round(p95, 2),
        "per_second": round(measured.rate, 1),
        "cpu_ms": round(measured.server_cpu_ms, 2),
        "postgresql_cpu_ms": round(measured.cpu_ms["postgresql"] / len(measured.timed), 2),
    }


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the report as tables in Markdown."""
    about = report["machine"]
    parts = [f"{about['cpus']} cpus, load {about['load_average']:.1f}, Python {about['python']}, {about['platform']}"]
    parts.append(
        "p50 in ms (CPU of the mesh in ms per operation); turns per second where the row says so\n\n" + _rows(report)
    )
    parts.append(_at_rest(report))
    parts.append("CPU in ms per operation by service, each in a process of its own\n\n" + _services(report))
    return "\n\n".join(parts)


def _columns(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(engine, name) for engine, found in report["engines"].items() for name in found["versions"]]


def _title(engine: str, version: str) -> str:
    return engine if version == "this" else f"{engine}, {version}"


def _rows(report: Mapping[str, Any]) -> str:
    columns, head, cells = _columns(report), ["work"], dict[str, list[str]]()
    for engine, version in columns:
        rows = report["engines"][engine]["versions"][version]["rows"]
        for api in dict.fromkeys(row["api"] for row in rows):
            head.append(f"{_title(engine, version)}, {api}")
            for row in rows:
                if row["api"] == api:
                    cells.setdefault(row["name"], []).append(_cell(row))
    return _table(head, [[name, *found] for name, found in cells.items()])


def _cell(row: Mapping[str, Any]) -> str:
    figure = f"{row['per_second']:.0f}/s" if row["figure"] == "rate" else f"{row['p50_ms']:.1f}"
    return f"{figure} ({row['cpu_ms']:.1f})"


def _at_rest(report: Mapping[str, Any]) -> str:
    names = {
        "first_start": "ready, first start, s",
        "warm_start": "ready, warm start, s",
        "memory_mb": "memory at rest, MB",
        "cpu_ms_per_second": "CPU at rest, ms per s",
        "postgresql_mb": "memory of PostgreSQL, MB",
        "postgresql_cpu_ms_per_second": "CPU of PostgreSQL at rest, ms per s",
    }
    columns = _columns(report)
    found = [report["engines"][engine]["versions"][version] for engine, version in columns]
    rows = [
        [text, *(f"{one['at_rest'][name]:.1f}" for one in found)]
        for name, text in names.items()
        if any(one["at_rest"][name] for one in found)
    ]
    rows.append(["memory after the turns, MB", *(f"{one['memory_after_mb']:.1f}" for one in found)])
    return _table(["mesh", *(_title(*column) for column in columns)], rows)


def _services(report: Mapping[str, Any]) -> str:
    rows = [
        [f"{one['name']}, {engine}", *(f"{ms:.1f}" for name, ms in one.items() if name not in ("name", "postgresql"))]
        for engine, found in report["engines"].items()
        for one in found["cpu_ms_by_service"]
    ]
    names = next(iter(report["engines"].values()))["cpu_ms_by_service"][0]
    return _table(["work", *(name for name in names if name not in ("name", "postgresql"))], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("--:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
