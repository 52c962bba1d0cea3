"""`mnemesh top`: what the mesh does now."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import runs_pb2
from mnemesh_cli.chat.status_line import duration_text
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.display.group_views import AgentNames
from mnemesh_cli.display.records import Column, Kind, print_json, table_lines
from mnemesh_cli.display.terminal import output
from mnemesh_client.mnemesh import Mnemesh
from rich.console import Group
from rich.live import Live
from rich.text import Text

_WINDOW: Final = timedelta(minutes=5)
_MOST_RUNS: Final = 2000
_MOST_SHOWN: Final = 15
_COLUMNS: Final = (
    Column("AGENT", lambda row: row["agent"], flexible=True),
    Column("RUN", lambda row: row["run_id"], kind=Kind.ID),
    Column("STATUS", lambda row: row["status"]),
    Column("STEPS", lambda row: str(row["steps"]), right=True),
    Column("TIME", lambda row: duration_text(row["seconds"]), right=True),
)


@with_client
async def top(
    mnemesh: Mnemesh,
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print the figures once.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between updates.")] = 2.0,
) -> None:
    """Show the active runs, and the turns, tokens, failures and latency of the last five minutes. Ctrl-C ends it."""
    console = output()
    names = AgentNames(mnemesh)
    figures = await _figures(mnemesh, names)
    if context.obj.as_json or once or not console.is_terminal:
        while True:
            if context.obj.as_json:
                print_json(figures)
            else:
                console.print(_screen(figures, None))
            if once:
                return
            await asyncio.sleep(interval)
            figures = await _figures(mnemesh, names)
    with Live(_screen(figures, console.width), console=console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval)
            live.update(_screen(await _figures(mnemesh, names), console.width), refresh=True)


async def _figures(mnemesh: Mnemesh, names: AgentNames) -> dict[str, Any]:
    now = datetime.now(UTC)
    recent: list[runs_pb2.Run] = []
    async for run in mnemesh.runs.list(order="desc", limit=_MOST_RUNS):
        if run.create_time.ToDatetime(UTC) < now - _WINDOW:
            break
        recent.append(run)
    ended = [run for run in recent if run.HasField("completion_time")]
    active = [run async for run in mnemesh.runs.list(statuses=("created", "running"), order="asc", limit=100)]
    durations = sorted(run.total_duration.ToTimedelta().total_seconds() for run in ended)
    minutes = _WINDOW.total_seconds() / 60
    return {
        "time": now.isoformat(timespec="seconds"),
        "active_runs": len(active),
        "turns_per_minute": round(len(ended) / minutes, 2),
        "failed_turns": sum(run.status == runs_pb2.RUN_STATUS_FAILED for run in ended),
        "prompt_tokens_per_minute": round(sum(run.usage.prompt_tokens for run in ended) / minutes),
        "completion_tokens_per_minute": round(sum(run.usage.completion_tokens for run in ended) / minutes),
        "latency_p50_seconds": median(durations) if durations else None,
        "latency_p95_seconds": durations[int(0.95 * (len(durations) - 1))] if durations else None,
        "runs": [
            {
                "run_id": run.id,
                "agent": await names.name(run.agent_id) if run.agent_id else run.group_id,
                "status": runs_pb2.RunStatus.Name(run.status).removeprefix("RUN_STATUS_").lower(),
                "steps": run.step_count,
                "seconds": round((now - run.create_time.ToDatetime(UTC)).total_seconds(), 1),
            }
            for run in active
        ],
    }


def _screen(figures: dict[str, Any], width: int | None) -> Group:
    p50, p95 = figures["latency_p50_seconds"], figures["latency_p95_seconds"]
    latency = "-" if p50 is None else f"{duration_text(p50)}, p95 {duration_text(p95)}"
    tokens = f"{figures['prompt_tokens_per_minute']:,} in, {figures['completion_tokens_per_minute']:,} out"
    head = (
        ("active runs", str(figures["active_runs"])),
        ("turns per minute", f"{figures['turns_per_minute']:g} ({figures['failed_turns']} failed)"),
        ("tokens per minute", tokens),
        ("latency, median", latency),
    )
    lines = [Text.assemble((f"{label:18}", "dim"), value) for label, value in head]
    runs = figures["runs"][:_MOST_SHOWN]
    table = table_lines(_COLUMNS, runs, width) if runs else []
    body = [Text(line, style="" if number else "bold") for number, line in enumerate(table)]
    return Group(*lines, *([Text()] if body else []), *body)
