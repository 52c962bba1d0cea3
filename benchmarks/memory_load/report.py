"""Formats the results as tables."""

from collections.abc import Mapping, Sequence
from typing import Any


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
