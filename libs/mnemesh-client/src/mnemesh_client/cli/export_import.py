"""`mnemesh export` and `mnemesh import`: the memory of an agent as files."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Final

import typer
from mnemesh_kit.errors import InvalidArgument, MnemeshError

from mnemesh_client.cli.connection import Connection
from mnemesh_client.cli.options import AgentArgument
from mnemesh_client.cli.terminal import output, print_error
from mnemesh_client.trace_files.directory import ACTIVE, ARCHIVE, EPISODES, FACTS, TraceDirectory
from mnemesh_client.trace_files.mirror import Mirror

_DIRECTORY_VARIABLES: Final = ["MNEMESH_MEMORY_DIR", "AUTOBYTEUS_MEMORY_DIR"]


def export(
    context: typer.Context,
    agent: AgentArgument,
    dir: Annotated[  # noqa: A002  (the name of the option)
        Path, typer.Option(envvar=_DIRECTORY_VARIABLES, help="Directory in which agents/<id>/ is created.")
    ] = Path("memory"),
    watch: Annotated[bool, typer.Option("--watch", help="Keep the files up to date until interrupted.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between updates with --watch.")] = 2.0,
) -> None:
    """Export the memory of an agent to JSONL files."""
    asyncio.run(_export(context.obj, agent, dir, interval if watch else None))


def import_(
    context: typer.Context,
    dir: Annotated[  # noqa: A002  (the name of the argument)
        Path,
        typer.Argument(
            metavar="DIR",
            envvar=_DIRECTORY_VARIABLES,
            help="Directory of one agent's files, or one with agents/ in it.",
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(help="Id or name of the agent to import into.", show_default="the agent that the directory names"),
    ] = None,
    window: Annotated[
        bool, typer.Option(help="Add traces that are not archived to the agent's context window.")
    ] = True,
) -> None:
    """Import JSONL files into an agent. Records that the agent already has are skipped.

    A file with a malformed line is refused, and nothing is imported.
    """
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
            await mirror.follow(interval, stop, _report_stale)


async def _import(connection: Connection, base: Path, key: str | None, *, window: bool) -> None:
    directories = _agent_directories(base)
    if key is not None and len(directories) > 1:
        raise InvalidArgument(f"{base} has files of several agents. Name the directory of one.", field="agent")
    # All files are read first: a malformed line imports nothing.
    contents = {directory: list(TraceDirectory(directory).records()) for directory in directories}
    async with connection.open() as mnemesh:
        for directory, records in contents.items():
            agent = await mnemesh.agents.find(key or directory.name)
            result = await mnemesh.traces.import_(agent.id, records, extend_window=window)
            output().print(
                f"{agent.name}: imported {result.imported_traces} traces in {result.created_turns} new turns,"
                f" {result.imported_episodes} episodes, {result.imported_facts} facts;"
                f" skipped {result.skipped_records} existing records",
                soft_wrap=True,
            )


def _agent_directories(base: Path) -> list[Path]:
    if any((base / name).exists() for name in (ACTIVE, ARCHIVE, EPISODES, FACTS)):
        return [base.resolve()]
    directories = sorted(path for path in (base / "agents").glob("*") if path.is_dir())
    if not directories:
        raise InvalidArgument(f"{base} has no trace files.", field="dir")
    return directories


def _report_stale(error: MnemeshError) -> None:
    print_error(f"the files are not up to date: {error.message}")
