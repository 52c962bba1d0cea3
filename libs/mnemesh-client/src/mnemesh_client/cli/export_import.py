"""`mnemesh export`, `mnemesh import`: an agent's memory as files."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
from mnemesh_kit.errors import InvalidArgument, MnemeshError

from mnemesh_client.cli.connection import Connection
from mnemesh_client.cli.terminal import complain, output
from mnemesh_client.trace_files.directory import ACTIVE, ARCHIVE, EPISODES, FACTS, TraceDirectory
from mnemesh_client.trace_files.mirror import Mirror

FOLDER = ["MNEMESH_MEMORY_DIR", "AUTOBYTEUS_MEMORY_DIR"]


def export(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help="Id or name.")],
    dir: Annotated[  # noqa: A002  (the option's own name)
        Path, typer.Option(envvar=FOLDER, help="Where agents/<id>/ is made.")
    ] = Path("memory"),
    watch: Annotated[bool, typer.Option("--watch", help="Keep the files current until interrupted.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between looks, with --watch.")] = 2.0,
) -> None:
    """Write what an agent remembers to JSONL files."""
    asyncio.run(_export(context.obj, agent, dir, interval if watch else None))


def import_(
    context: typer.Context,
    dir: Annotated[  # noqa: A002  (the argument's own name)
        Path, typer.Argument(envvar=FOLDER, help="One agent's files, or a folder with agents/ in it.")
    ],
    agent: Annotated[str | None, typer.Option(help="Who takes them in; else the agent that the folder names.")] = None,
    window: Annotated[bool, typer.Option(help="Show what is not archived in the agent's window.")] = True,
) -> None:
    """Read JSONL files into an agent; what it remembers already is passed over."""
    asyncio.run(_import(context.obj, dir, agent, window=window))


async def _export(connection: Connection, key: str, base: Path, interval: float | None) -> None:
    stop = asyncio.Event()
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        directory = TraceDirectory.of_agent(base, agent.id)
        mirror = Mirror(mnemesh.traces, agent.id, directory)
        if interval is not None:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
        count = await mirror.write()
        output().print(f"{directory.path}: {count} lines", soft_wrap=True)
        if interval is not None:
            await mirror.follow(interval, stop, _tell)


async def _import(connection: Connection, base: Path, key: str | None, *, window: bool) -> None:
    folders = _folders(base)
    if key is not None and len(folders) > 1:
        raise InvalidArgument("There are files of several agents; name the folder of one.", field="agent")
    async with connection.open() as mnemesh:
        for folder in folders:
            agent = await mnemesh.agents.find(key or folder.name)
            records = list(TraceDirectory(folder).records())
            done = await mnemesh.traces.import_(agent.id, records, extend_window=window)
            output().print(
                f"{agent.name}: {done.imported_traces} traces in {done.created_turns} new turns,"
                f" {done.imported_episodes} episodes, {done.imported_facts} facts;"
                f" {done.skipped_records} were there already",
                soft_wrap=True,
            )


def _folders(base: Path) -> list[Path]:
    if any((base / name).exists() for name in (ACTIVE, ARCHIVE, EPISODES, FACTS)):
        return [base.resolve()]
    found = sorted(path for path in (base / "agents").glob("*") if path.is_dir())
    if not found:
        raise InvalidArgument(f"{base} holds no trace files.", field="dir")
    return found


def _tell(error: MnemeshError) -> None:
    complain(f"not up to date: {error.message}")
