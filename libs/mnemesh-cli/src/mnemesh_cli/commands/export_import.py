"""`mnemesh export` and `mnemesh import`: the memory of an agent as files."""

import asyncio
import hashlib
import json
import signal
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import agent_records_pb2
from mnemesh.agents.v1.agents_service_pb2 import ImportOptions
from mnemesh_cli.agent_exports import (
    RECORDS,
    AgentImport,
    ImportCounts,
    count_records,
    export_records,
    import_records,
    vector_lines,
    vector_report,
)
from mnemesh_cli.connection import Connection, with_free_name
from mnemesh_cli.display.error_text import plain_message
from mnemesh_cli.display.progress import counted_bar
from mnemesh_cli.display.records import count_text, print_done, print_json
from mnemesh_cli.display.terminal import is_json, notice, output, print_error
from mnemesh_cli.options import AgentArgument
from mnemesh_cli.trace_files.directory import ACTIVE, ARCHIVE, EPISODES, FACTS, Mirror, TraceDirectory
from mnemesh_client.agent import Agent
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MnemeshError,
    NotFound,
    Unavailable,
)
from mnemesh_kit.extras import install_hint
from mnemesh_letta.database.report import Report, problem_lines, table_lines
from mnemesh_letta.files.transfer import LettaImport, export_letta
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

CONTINUE: Final = "run the command again: it continues where it stopped, and creates nothing twice"
_NAME_CHARS: Final = 24


class MigrationBar:
    """A bar for the messages of the agent that is sent; lines on stderr if that is not a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("reading", total=None)
        self.has_begun = False
        """Whether the import of an agent has begun."""

    def agent(self, name: str, number: int, total: int, messages: int) -> None:
        """An agent with so many messages begins."""
        self.has_begun = True
        short = name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"
        self._progress.reset(self._task, total=messages, description=f"{number}/{total} {short}")
        if self._progress.disable:
            notice(f"agent {number} of {total}: {name}, {count_text(messages, 'message')}")

    def message(self) -> None:
        """A message was sent."""
        self._progress.advance(self._task)


async def import_letta(
    connection: Connection, database_url: str, *, organization: str | None, model: str | None
) -> Report:
    """Migrates a database and prints the report. SIGTERM cancels it as Ctrl-C does.

    Raises:
        FailedPrecondition: the extra "letta" is not installed; or see `Migration.run`.
    """
    try:
        # The libraries of databases are an extra.
        from mnemesh_letta.database.database import open_database  # noqa: PLC0415
        from mnemesh_letta.database.migration import Migration  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"The package {error.name} is not installed. {install_hint('mnemesh-cli', 'letta')}"
        ) from error
    if (task := asyncio.current_task()) is not None:
        # A loop with any signal handler is woken by every signal, so that it misses no Ctrl-C.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_terminal = sys.stderr.isatty()
    console = Console(file=sys.stderr)
    async with connection.open() as mnemesh, open_database(database_url) as database:
        with Progress(*columns, console=console, disable=not is_terminal, transient=True) as progress:
            bar = MigrationBar(progress)
            migration = Migration(database, mnemesh, organization_id=organization, model=model, progress=bar)
            try:
                report = await migration.run()
            except (Unavailable, DeadlineExceeded):
                if bar.has_begun:
                    notice(f"not everything has arrived; {CONTINUE}")
                raise
    if is_json.get():
        print_json({**report.as_json(), "vectors": vector_report(report.vector_uses, report.without_vector)})
        return report
    vectors = vector_lines(report.vector_uses, report.without_vector)
    for line in (*table_lines(report), *vectors, *problem_lines(report)):
        output().print(line, markup=False, soft_wrap=True)
    return report


class ExportFormat(StrEnum):
    """The form of an export."""

    MNEMESH = "mnemesh"
    LETTA = "letta"


async def import_letta_file(connection: Connection, path: Path, model: str | None) -> None:
    """Imports an agent file. The same file creates the same agents, once.

    Raises:
        InvalidArgument: the file cannot be read, or is not an agent file of Letta.
    """
    content = await asyncio.to_thread(_content, path)
    async with connection.open() as mnemesh:
        restored = LettaImport(
            mnemesh, content, hashlib.sha256(content).hexdigest(), options=ImportOptions(model=model)
        )
        agents = await restored.run()
        for note in restored.notes:
            notice(note)
        agents = [(await with_free_name(mnemesh, mnemesh.agents.handle(agent))).proto for agent in agents]
    for agent in agents:
        print_done(f"{agent.name}: {agent.id}", agent)


async def export_letta_file(connection: Connection, key: str, directory: Path) -> None:
    """Writes an agent to <directory>/<agent_id>.af."""
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        data = await export_letta(mnemesh, [agent.id])
    path = directory / f"{agent.id}.af"
    await asyncio.to_thread(_write, path, json.dumps(data, ensure_ascii=False, indent=2) + "\n")
    counts = {
        "messages": len(data["agents"][0]["messages"]),
        "blocks": len(data["blocks"]),
        "tools": len(data["tools"]),
    }
    notice("passages, runs, revisions of blocks and values of secrets have no place in an agent file")
    text = f"{path}: {', '.join(f'{count} {name}' for name, count in counts.items())}"
    print_done(text, {"agent_id": agent.id, "path": str(path), **counts})


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}", field="dir") from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


_DIRECTORY_VARIABLES: Final = ["MNEMESH_MEMORY_DIR", "AUTOBYTEUS_MEMORY_DIR"]
_PLURALS: Final = {"identity": "identities"}


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
    file: Annotated[
        Path | None, typer.Option(help="Write everything as one file, such as agent.mnemesh, and no directory.")
    ] = None,
    vectors: Annotated[
        bool,
        typer.Option(
            "--vectors",
            help="Also export the vectors of passages, about 11 bytes for each number. An import into a mesh with the"
            " same embedder then embeds nothing again.",
        ),
    ] = False,
    format: Annotated[  # noqa: A002  (the name of the option)
        ExportFormat, typer.Option(help="letta writes one agent file of Letta 0.16, <dir>/<agent_id>.af.")
    ] = ExportFormat.MNEMESH,
) -> None:
    """Export everything of an agent to JSON files, without the values of secrets and the contents of uploaded files.

    --watch keeps the trace files up to date, not the other files.
    """
    if vectors and (format is ExportFormat.LETTA or traces):
        raise InvalidArgument(
            "Agent files of Letta and trace files have no vectors. Leave out --vectors.", field="vectors"
        )
    if format is ExportFormat.LETTA:
        asyncio.run(export_letta_file(context.obj, agent, dir))
        return
    if file is not None:
        if watch or traces:
            raise InvalidArgument("--file excludes --watch and --traces.", field="file")
        asyncio.run(_export_file(context.obj, agent, file, with_vectors=vectors))
        return
    follow = interval if watch else None
    asyncio.run(_export(context.obj, agent, dir, follow, traces_only=traces, with_vectors=vectors))


def import_(
    context: typer.Context,
    dir: Annotated[  # noqa: A002  (the name of the argument)
        Path,
        typer.Argument(
            metavar="DIR|FILE.af|letta",
            envvar=_DIRECTORY_VARIABLES,
            help="Directory of one agent's files, or one with agents/ in it; a file of --file; an agent file of Letta;"
            " or letta, for a database of Letta.",
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "-a",
            help="Id or name of the agent to import into.",
            show_default="the agent that the directory names",
        ),
    ] = None,
    window: Annotated[
        bool, typer.Option(help="Add traces that are not archived to the agent's context window.")
    ] = True,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of a new agent; with letta, of the agents whose model the mesh does not have.",
            show_default="the model of the exported agent",
        ),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="MNEMESH_LETTA_DATABASE_URL",
            help="With letta: the database, postgresql://… or sqlite:///…. It is only read.",
        ),
    ] = None,
    organization: Annotated[
        str | None, typer.Option(help="With letta: the organization, if several have data.", metavar="ID")
    ] = None,
) -> None:
    """Import exported files into an agent. What the agent already has is kept.

    If there is no agent with the id of the directory, and --agent is not given, one is created with everything that was
    exported. A file with a malformed line is refused, and nothing is imported. An interrupted import is repeated.

    `mnemesh import letta --database-url URL` migrates a database of Letta 0.16, and `mnemesh import FILE.af` imports an
    agent file of Letta. Both can be repeated, and create nothing twice.
    """
    if str(dir) == "letta":
        _import_letta(context.obj, database_url, organization, model)
        return
    if dir.suffix == ".af":
        asyncio.run(import_letta_file(context.obj, dir, model))
        return
    if not dir.is_file():
        asyncio.run(_import(context.obj, dir, agent, model, window=window))
        return
    if agent is not None:
        raise InvalidArgument("A file creates an agent of its own. Leave out --agent.", field="agent")
    asyncio.run(_open_and_import(context.obj, dir, model))


def _import_letta(
    connection: Connection, database_url: str | None, organization: str | None, model: str | None
) -> None:
    if database_url is None:
        raise InvalidArgument("Name the database of Letta with --database-url.", field="database-url")
    migration = import_letta(connection, database_url, organization=organization, model=model)
    try:
        report = asyncio.run(migration)
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        notice(f"interrupted; {CONTINUE}")
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        raise typer.Exit(128 + number) from error
    if not report.is_complete:
        raise typer.Exit(1)


async def _export(
    connection: Connection,
    key: str,
    base: Path,
    interval: float | None,
    *,
    traces_only: bool,
    with_vectors: bool = False,
) -> None:
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
        record: dict[str, Any] = {"agent_id": agent.id, "path": str(directory.path), "lines": count}
        exported = ""
        if not traces_only:
            with counted_bar("Exporting", "records") as on_count:
                record["records"] = await export_records(
                    mnemesh, agent.id, directory.path / RECORDS, on_count, with_vectors=with_vectors
                )
            exported = f", {count_text(record['records'], 'record')}"
            _report_secrets(agent)
        text = f"{directory.path}: {count} lines of traces, episodes and facts{exported}"
        print_done(text, record)
        if interval is not None:
            await mirror.follow(interval, stop, _report_stale)


async def _export_file(connection: Connection, key: str, path: Path, *, with_vectors: bool = False) -> None:
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        with counted_bar("Exporting", "records") as on_count:
            count = await export_records(mnemesh, agent.id, path, on_count, with_vectors=with_vectors)
        record = {"agent_id": agent.id, "path": str(path), "records": count}
        print_done(f"{path}: {count_text(count, 'record')} of {agent.name}", record)
        _report_secrets(agent)


def _report_secrets(agent: Agent) -> None:
    if agent.proto.secrets:
        names = ", ".join(secret.key for secret in agent.proto.secrets)
        notice(f"the values of these secrets are not exported: {names}")


async def _import(connection: Connection, base: Path, key: str | None, model: str | None, *, window: bool) -> None:
    directories = _agent_directories(base)
    if key is not None and len(directories) > 1:
        raise InvalidArgument(f"{base} has files of several agents. Name the directory of one.", field="agent")
    async with connection.open() as mnemesh:
        # All files are read first: a malformed line imports nothing.
        for directory, restored in [(each, AgentImport(mnemesh, each)) for each in directories]:
            if key is None and (directory / RECORDS).is_file() and not await _exists(mnemesh, directory.name):
                await _import_file(mnemesh, directory / RECORDS, model)
                continue
            agent = await restored.run(key, window=window)
            for note in restored.counts.notes:
                notice(note)
            record = {"agent_id": agent.id, **asdict(restored.counts)}
            print_done(_import_report(agent, restored.counts), record)


async def _open_and_import(connection: Connection, path: Path, model: str | None) -> None:
    async with connection.open() as mnemesh:
        await _import_file(mnemesh, path, model)


async def _exists(mnemesh: Mnemesh, agent_id: str) -> bool:
    try:
        await mnemesh.agents.find(agent_id)
    except NotFound:
        return False
    return True


async def _import_file(mnemesh: Mnemesh, path: Path, model: str | None) -> None:
    """Creates the agent of a file of records. A repeat changes nothing."""
    total, request_id = count_records(path)
    with counted_bar("Importing", "records", total) as on_count:
        response = await import_records(mnemesh, path, request_id, on_count, model=model)
    for item in response.skipped:
        name = agent_records_pb2.RecordType.Name(item.type).removeprefix("RECORD_TYPE_").lower()
        notice(f"{name} {item.id}: {item.reason}")
    for line in vector_lines({item.use: item.passages for item in response.vector_uses}):
        notice(line)
    if not response.replayed:
        response.agent.CopyFrom((await with_free_name(mnemesh, mnemesh.agents.handle(response.agent))).proto)
    agent, verb = response.agent, "exists already as" if response.replayed else "created"
    parts = [_counted(item) for item in response.counts if item.type != agent_records_pb2.RECORD_TYPE_AGENT]
    print_done(f"{agent.name}: {verb} {agent.id}: {', '.join(parts)}", response)


def _counted(item: agent_records_pb2.RecordCounts) -> str:
    """Returns the counts of a type, such as "3 passages (1 existed)"."""
    name = agent_records_pb2.RecordType.Name(item.type).removeprefix("RECORD_TYPE_").lower().replace("_", " ")
    more = [f"{item.existing} existed"] if item.existing else []
    more += [f"{item.skipped} skipped"] if item.skipped else []
    return f"{item.created} {_PLURALS.get(name, name + 's')}" + (f" ({', '.join(more)})" if more else "")


def _import_report(agent: Agent, counts: ImportCounts) -> str:
    others = (
        (counts.blocks, "block"), (counts.conversations, "conversation"),
        (counts.passages, "passage"),
    )  # fmt: skip
    more = "".join(f", {count_text(count, name)}" for count, name in others if count)
    return (
        f"{agent.name}: imported {count_text(counts.traces, 'trace')} in "
        f"{count_text(counts.turns, 'new turn')}, {count_text(counts.episodes, 'episode')}, "
        f"{count_text(counts.facts, 'fact')}{more}; skipped {count_text(counts.skipped, 'existing record')}"
    )


def _agent_directories(base: Path) -> list[Path]:
    if any((base / name).exists() for name in (ACTIVE, ARCHIVE, EPISODES, FACTS, RECORDS)):
        return [base.resolve()]
    directories = sorted(path for path in (base / "agents").glob("*") if path.is_dir())
    if not directories:
        raise InvalidArgument(f"{base} has no trace files.", field="dir")
    return directories


def _report_stale(error: MnemeshError) -> None:
    print_error(f"the files are not up to date: {plain_message(error)}")
