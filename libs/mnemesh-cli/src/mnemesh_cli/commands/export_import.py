"""`mnemesh export` and `mnemesh import`: the memory of an agent as files."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Final

import typer
from mnemesh_cli.agent_exports import files
from mnemesh_cli.agent_exports.export import export_agent
from mnemesh_cli.agent_exports.restore import AgentImport, ImportCounts
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.terminal import notice, output, print_error
from mnemesh_cli.options import AgentArgument
from mnemesh_cli.trace_files.directory import ACTIVE, ARCHIVE, EPISODES, FACTS, TraceDirectory
from mnemesh_cli.trace_files.mirror import Mirror
from mnemesh_client.agent import Agent
from mnemesh_kit.errors import InvalidArgument, MnemeshError

_DIRECTORY_VARIABLES: Final = ["MNEMESH_MEMORY_DIR", "AUTOBYTEUS_MEMORY_DIR"]


def export(
    context: typer.Context,
    agent: AgentArgument,
    dir: Annotated[  # noqa: A002  (the name of the option)
        Path, typer.Option(envvar=_DIRECTORY_VARIABLES, help="Directory in which agents/<id>/ is created.")
    ] = Path("memory"),
    watch: Annotated[bool, typer.Option("--watch", help="Keep the files up to date until interrupted.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between updates with --watch.")] = 2.0,
    traces: Annotated[
        bool, typer.Option("--traces", help="Export only the trace files: turns, episodes and facts.")
    ] = False,
) -> None:
    """Export an agent to JSON files: settings, tools, core memory, archives, conversations, turns, episodes and facts.

    Left out: the values of secrets, identities, runs with their steps, and revisions of blocks. --watch keeps the trace
    files up to date, not the other files.
    """
    asyncio.run(_export(context.obj, agent, dir, interval if watch else None, traces_only=traces))


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
    model: Annotated[
        str | None, typer.Option(help="Model of a new agent.", show_default="the model of the exported agent")
    ] = None,
) -> None:
    """Import exported files into an agent. What the agent already has is kept.

    If there is no agent with the id of the directory, and --agent is not given, one is created with the exported
    settings. A file with a malformed line is refused, and nothing is imported.
    """
    asyncio.run(_import(context.obj, dir, agent, model, window=window))


async def _export(connection: Connection, key: str, base: Path, interval: float | None, *, traces_only: bool) -> None:
    stop = asyncio.Event()
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        directory = TraceDirectory.of_agent(base, agent.id)
        scope = agent.proto.compaction_settings.memory_scope
        mirror = Mirror(mnemesh.traces, agent.id, directory, (scope,) if scope else ())
        if interval is not None:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
        count = await mirror.write()
        exported = ""
        if not traces_only:
            counts = await export_agent(mnemesh, agent, directory.path)
            exported = (
                f", {counts.blocks} blocks, {counts.tools} tools, {counts.conversations} conversations,"
                f" {counts.passages} passages in {counts.archives} archives"
            )
            if counts.secrets:
                notice(f"the values of these secrets are not exported: {', '.join(counts.secrets)}")
        output().print(f"{directory.path}: {count} lines of traces, episodes and facts{exported}", soft_wrap=True)
        if interval is not None:
            await mirror.follow(interval, stop, _report_stale)


async def _import(connection: Connection, base: Path, key: str | None, model: str | None, *, window: bool) -> None:
    directories = _agent_directories(base)
    if key is not None and len(directories) > 1:
        raise InvalidArgument(f"{base} has files of several agents. Name the directory of one.", field="agent")
    async with connection.open() as mnemesh:
        # All files are read first: a malformed line imports nothing.
        for restored in [AgentImport(mnemesh, directory) for directory in directories]:
            agent = await restored.run(key, model=model, window=window)
            for note in restored.counts.notes:
                notice(note)
            output().print(_import_report(agent, restored.counts), soft_wrap=True)


def _import_report(agent: Agent, counts: ImportCounts) -> str:
    created = f"created {agent.id}, " if counts.is_new else ""
    others = (
        (counts.blocks, "blocks"), (counts.tools, "tools"), (counts.conversations, "conversations"),
        (counts.passages, "passages"),
    )  # fmt: skip
    more = "".join(f", {count} {name}" for count, name in others if count)
    return (
        f"{agent.name}: {created}imported {counts.traces} traces in {counts.turns} new turns,"
        f" {counts.episodes} episodes, {counts.facts} facts{more}; skipped {counts.skipped} existing records"
    )


def _agent_directories(base: Path) -> list[Path]:
    if any((base / name).exists() for name in (ACTIVE, ARCHIVE, EPISODES, FACTS, *files.NAMES)):
        return [base.resolve()]
    directories = sorted(path for path in (base / "agents").glob("*") if path.is_dir())
    if not directories:
        raise InvalidArgument(f"{base} has no trace files.", field="dir")
    return directories


def _report_stale(error: MnemeshError) -> None:
    print_error(f"the files are not up to date: {error.message}")
