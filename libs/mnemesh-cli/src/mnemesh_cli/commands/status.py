"""`mnemesh status`: the services of a mesh."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

import typer
from mnemesh_cli.chat.status_line import duration_text
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.commands.version import service_version
from mnemesh_cli.display.records import Column, print_json, table_lines
from mnemesh_cli.display.terminal import notice, output
from mnemesh_cli.machine import mesh_config
from mnemesh_cli.supervisor import health
from mnemesh_cli.supervisor.data_lock import lock_holder
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError, Unavailable
from mnemesh_kit.services import Protocol, service
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
    if context.obj.as_json:
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
