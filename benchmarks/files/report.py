"""Formats the results as tables."""

from collections.abc import Callable, Mapping
from typing import Any, Final


def machine_text(machine: Mapping[str, Any]) -> str:
    """Returns one line about the machine."""
    return (
        f"{machine['cpus']} cpus, load {machine['load_average']:.1f}, Python {machine['python']}, {machine['platform']}"
    )


def _ingestion(found: Mapping[str, Any]) -> str:
    files, megabytes = found["files"], found["bytes"] / 1e6
    rows = [
        ("files, MB, passages", f"{files:,}, {megabytes:,.0f}, {found['passages']:,}"),
        ("uploaded in s (files/s)", f"{found['upload_seconds']:,.0f} ({files / found['upload_seconds']:,.0f})"),
        ("processed in s (files/s)", f"{found['processed_seconds']:,.0f} ({files / found['processed_seconds']:,.1f})"),
        ("failed", str(found["failed"])),
    ]
    for name, milliseconds in found["cpu_ms_per_file"].items():
        memory = f"{found['own_mb_before'][name]:,.0f} → {found['own_mb_peak'][name]:,.0f} MB"
        rows.append((f"{name}: CPU per file, memory", f"{milliseconds:.1f} ms, {memory}"))
    return "\n".join(["| ingestion | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _grep(grep: Mapping[str, Any]) -> str:
    lines = [f"| grep in {grep['bytes'] / 1e6:,.0f} MB | matches | p50 ms | p95 ms |", "|---|--:|--:|--:|"]
    for row in grep["patterns"]:
        late = " (time over)" if row["timed_out"] else ""
        lines.append(f"| {row['pattern']}{late} | {row['matches']:,} | {row['p50_ms']:.0f} | {row['p95_ms']:.0f} |")
    return "\n".join(lines)


def _search(search: Mapping[str, Any]) -> str:
    return f"search in all passages: p50 {search['p50_ms']:.0f} ms, p95 {search['p95_ms']:.0f} ms"


def _views(views: Mapping[str, Any]) -> str:
    lines = ["| turn of an agent with | p50 ms | p95 ms | CPU ms (orchestrator, files) |", "|---|--:|--:|--:|"]
    for kind, row in views["kinds"].items():
        lines.append(f"| {kind} | {row['p50_ms']:.1f} | {row['p95_ms']:.1f} | {row['cpu_ms']:.1f} |")
    for kind, row in views["directories"].items():
        lines.append(f"| (GetDirectories, {kind}) | {row['p50_ms']:.1f} | {row['p95_ms']:.1f} | |")
    return "\n".join(lines)


TABLES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "views": _views,
    "grep": _grep,
    "ingestion": _ingestion,
    "search": _search,
}
