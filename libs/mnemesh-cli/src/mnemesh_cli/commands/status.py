"""`mnemesh status` and `mnemesh top`: the services of a mesh, and what they do now."""

import asyncio
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from statistics import median
from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import runs_pb2
from mnemesh_cli.chat.render import duration_text
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.commands.version import service_version
from mnemesh_cli.display.records import Column, Kind, print_json, table_lines
from mnemesh_cli.display.terminal import is_json, notice, output
from mnemesh_cli.display.views import AgentNames
from mnemesh_cli.supervisor import health
from mnemesh_cli.supervisor.config import lock_holder, mesh_config
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError, Unavailable
from mnemesh_kit.services import Protocol, service
from rich.console import Group
from rich.live import Live
from rich.text import Text


def _health(row: dict[str, str]) -> str:
    return health.HEALTH_TEXTS.get(row["health"], row["health"].lower().replace("_", " "))


_COLUMNS: Final = tuple(
    Column(name.upper(), _health if name == "health" else itemgetter(name), flexible=name == "address")
    for name in ("service", "health", "address", "version", "uptime")
)


@with_client
async def status(mnemesh: Mnemesh, context: typer.Context) -> int:
    """Show the services of the mesh: address, health, version and uptime. Exits with 1 if one does not serve.

    The exit code is 4 if none answers.
    """
    config = mesh_config(None)
    holder = lock_holder(config.data_path)
    addresses = mnemesh.addresses.items()
    tls = context.obj.tls()
    states = await asyncio.gather(*(health.service_status(name, each, tls=tls) for name, each in addresses))
    rows = await asyncio.gather(
        *(_row(mnemesh, name, each, state) for (name, each), state in zip(addresses, states, strict=True))
    )
    if all(row["health"] == "UNAVAILABLE" for row in rows):
        raise Unavailable(f"No service answers at {addresses[0][1]}.")
    is_local = holder is not None and holder.addresses.get("orchestrator") == dict(addresses)["orchestrator"]
    if is_json.get():
        for row in rows:
            print_json({**row, "data_dir": str(config.data_path)} if is_local else row)
    else:
        _print(rows)
        if is_local and holder is not None:
            notice(f"data directory {config.data_path}, pid {holder.pid}")
    return int(any(row["health"] != "SERVING" for row in rows))


def _print(rows: list[dict[str, str]]) -> None:
    console = output()
    lines = table_lines(_COLUMNS, rows, console.width if console.is_terminal else None)
    for number, line in enumerate(lines):
        serves = number == 0 or rows[number - 1]["health"] == "SERVING"
        style = "bold" if number == 0 else "" if serves else "red"
        console.print(Text(line, style=style), soft_wrap=True)


async def _row(mnemesh: Mnemesh, name: str, address: str, state: str) -> dict[str, Any]:
    row = {"service": name, "health": state, "address": address, "version": "", "uptime": "", "start_time": ""}
    if state != "SERVING":
        return row
    try:
        row["version"] = await service_version(mnemesh, name)
        if service(name).protocol is Protocol.GRPC:
            row["start_time"] = (await mnemesh.server_info(name)).properties.get("start_time", "")
    except MnemeshError:
        return row
    if row["start_time"]:
        started = datetime.fromisoformat(row["start_time"])
        row["uptime"] = duration_text((datetime.now(UTC) - started).total_seconds())
    return row


_WINDOW: Final = timedelta(minutes=5)
_MOST_RUNS: Final = 2000
_MOST_SHOWN: Final = 15
_RUN_COLUMNS: Final = (
    Column("AGENT", lambda row: row["agent"], flexible=True),
    Column("RUN", lambda row: row["run_id"], kind=Kind.ID),
    Column("STATUS", lambda row: row["status"]),
    Column("STEPS", lambda row: str(row["steps"]), right=True),
    Column("TIME", lambda row: duration_text(row["seconds"]), right=True),
)


@with_client
async def top(
    mnemesh: Mnemesh,
    once: Annotated[bool, typer.Option("--once", help="Print the figures once.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between updates.")] = 2.0,
) -> None:
    """Show the active runs, and the turns, tokens, failures and latency of the last five minutes. Ctrl-C ends it."""
    console = output()
    names = AgentNames(mnemesh)
    figures = await _figures(mnemesh, names)
    if is_json.get() or once or not console.is_terminal:
        while True:
            if is_json.get():
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
    table = table_lines(_RUN_COLUMNS, runs, width) if runs else []
    body = [Text(line, style="" if number else "bold") for number, line in enumerate(table)]
    return Group(*lines, *([Text()] if body else []), *body)
