"""`mnemesh folders` and `mnemesh watch`: folders of files, and directories that are kept equal to them."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from mnemesh_cli.commands.files import HiddenOption, IgnoreOption, ParallelOption, find_or_create_folder
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.directories.sync import FolderSync, IgnoreRules, Pass, SyncReport
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.records import count_text, print_done, print_fields, print_json, print_list
from mnemesh_cli.display.terminal import is_json, notice, print_error
from mnemesh_cli.display.views import FOLDER_COLUMNS, AgentNames, folder_fields
from mnemesh_cli.options import AgentArgument, FolderArgument, YesOption
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.extras import install_hint

app = typer.Typer(no_args_is_help=True, help="Create, list, show, change and delete folders; attach them to agents.")

NO_FOLDERS = "There are no folders. Create one with `mnemesh folders create`."


@app.command("list")
@with_client
async def list_folders(
    mnemesh: Mnemesh,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Only folders of this agent, by id or name.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of folders to list.")] = 100,
) -> None:
    """List folders, newest first."""
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    folders = mnemesh.folders.list(agent_id=agent_id, order="desc", limit=limit)
    empty = NO_FOLDERS if agent is None else "The agent has no folders."
    await print_list(folders, FOLDER_COLUMNS, empty=empty, limit=limit)


@app.command("create")
@with_client
async def create_folder(
    mnemesh: Mnemesh,
    name: Annotated[str, typer.Argument(metavar="NAME", help='Name of the folder, unique and without "/".')],
    description: Annotated[
        str | None, typer.Option("--description", "-d", help="What the folder contains; its agents read it.")
    ] = None,
    instructions: Annotated[
        str | None, typer.Option(help="How agents should use the folder; its agents read it.")
    ] = None,
    embedder: Annotated[
        str, typer.Option(help="Embedder of the passages, as provider/model.", show_default="the default of the server")
    ] = "",
    chunk_size: Annotated[
        int, typer.Option(min=0, help="Maximum number of tokens of a passage.", show_default="300")
    ] = 0,
) -> None:
    """Create a folder and print its id."""
    folder = await mnemesh.folders.create(
        name, description=description, instructions=instructions, embedder=embedder, chunk_size=chunk_size
    )
    print_done(folder.id, folder)


@app.command("show")
@with_client
async def show_folder(mnemesh: Mnemesh, key: FolderArgument) -> None:
    """Show a folder and the agents that hold it."""
    folder = await mnemesh.folders.find(key)
    agent_ids = [agent_id async for agent_id in mnemesh.folders.agents(folder.id)]
    if is_json.get():
        print_json(folder, agent_ids=agent_ids)
        return
    names = AgentNames(mnemesh)
    print_fields([*folder_fields(folder), *[("agent", await names.label(each)) for each in agent_ids]])


@app.command("update")
@with_client
async def update_folder(
    mnemesh: Mnemesh,
    key: FolderArgument,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    description: Annotated[
        str | None, typer.Option("--description", "-d", help='The new description; "" removes it.')
    ] = None,
    instructions: Annotated[str | None, typer.Option(help='The new instructions; "" removes them.')] = None,
) -> None:
    """Change the name, description or instructions of a folder."""
    values = {"name": name, "description": description, "instructions": instructions}
    fields: dict[str, Any] = {field: value or None for field, value in values.items() if value is not None}
    if not fields:
        raise typer.BadParameter("Name at least one change. See `mnemesh folders update --help`.", param_hint="options")
    if name == "":
        raise typer.BadParameter("A folder needs a name.", param_hint="--name")
    folder = await mnemesh.folders.find(key)
    updated = await mnemesh.folders.update(folder.id, **fields)
    if is_json.get():
        print_json(updated)
    else:
        print_fields(folder_fields(updated))


@app.command("delete")
@with_client
async def delete_folder(mnemesh: Mnemesh, key: FolderArgument, yes: YesOption = False) -> None:
    """Delete a folder with all its files, and detach it from all agents."""
    folder = await mnemesh.folders.find(key)
    if not yes:
        count = "1 file" if folder.file_count == 1 else f"{folder.file_count} files"
        typer.confirm(f"Delete {folder.name} ({folder.id}) with {count}?", abort=True, err=True)
    await mnemesh.folders.delete(folder.id)
    print_done(f"deleted {folder.id}", {"deleted": folder.id})


@app.command("attach")
@with_client
async def attach_folder(mnemesh: Mnemesh, folder: FolderArgument, agent: AgentArgument) -> None:
    """Attach a folder, with its present and future files, to an agent."""
    await _attach(mnemesh, folder, agent, attach=True)


@app.command("detach")
@with_client
async def detach_folder(mnemesh: Mnemesh, folder: FolderArgument, agent: AgentArgument) -> None:
    """Detach a folder from an agent. The folder is kept."""
    await _attach(mnemesh, folder, agent, attach=False)


async def _attach(mnemesh: Mnemesh, key: str, agent_key: str, *, attach: bool) -> None:
    folder, agent = await mnemesh.folders.find(key), await mnemesh.agents.find(agent_key)
    if attach:
        await agent.files.attach(folder.id)
    else:
        await agent.files.detach(folder.id)
    done = f"attached {folder.name} to" if attach else f"detached {folder.name} from"
    record = {"folder_id": folder.id, "agent_id": agent.id}
    print_done(f"{done} {agent.name}", record)


@with_client
async def watch(
    mnemesh: Mnemesh,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The directory to follow.")
    ],
    folder: Annotated[
        str | None,
        typer.Option(
            "--folder", "-f", help="Folder, by id or name. A new name creates it.", show_default="name of DIR"
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete files of the folder when they are gone from the directory.")
    ] = False,
    ignore: IgnoreOption = None,
    hidden: HiddenOption = False,
    once: Annotated[bool, typer.Option("--once", help="Compare once and exit.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="With --once: wait until the files are processed.")
    ] = False,
    poll: Annotated[
        bool, typer.Option("--poll", help="Look for changes periodically, for file systems that do not report them.")
    ] = False,
    parallel: ParallelOption = 4,
    settle: Annotated[
        float, typer.Option(min=0.0, help="Seconds for which a file must not change before it is uploaded.")
    ] = 0.5,
) -> int:
    """Keep a folder in sync with a directory until interrupted.

    Uploads files that are new or changed, and prints them. A renamed file is renamed in the folder. Names and ignored
    files are as in `mnemesh files upload`. Files that were not uploaded from a directory are never deleted.
    """
    if wait and not once:
        raise typer.BadParameter("A watch waits only with --once.", param_hint="--wait")
    rules = IgnoreRules.of_root(ignore or (), hidden=hidden)
    try:
        from mnemesh_cli.directories.watch import Watch  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise StartupError(
            f"The package watchfiles is not installed. {install_hint('mnemesh-cli', 'watch')}"
        ) from error
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    target = await find_or_create_folder(mnemesh, folder or directory.resolve().name)
    printer = _Printer(target.name)
    sync = FolderSync(
        mnemesh, target.id, directory, rules, printer.report, deletes=delete, parallel=parallel, settle_seconds=settle
    )
    watcher = Watch(sync, on_pass=printer.passed, on_outage=printer.outage, on_problem=printer.problem, polls=poll)
    notice(f"{directory} → {target.name}{'' if once else '; Ctrl-C ends the watch'}")
    await (watcher.run_once(stop, waits=wait) if once else watcher.run(stop))
    return int(once and printer.failed)


class _Printer:
    """Prints what happens: changes of the folder to stdout, problems and the state to stderr."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._unreadable: dict[str, str] = {}
        self._answers = True
        self._problem = ""
        self.failed = False

    def report(self, report: SyncReport) -> None:
        """Prints what happened to a file."""
        if report.error is not None:
            self.failed = True
            print_error(f"{report.path}: {error_text(report.error)}")
        elif report.done == "unprocessed" and report.file is not None:
            self.failed = True
            print_error(f"{report.path} cannot be processed: {report.file.error_message}")
        elif report.file is not None:
            text = f"{report.done} {self._folder}/{report.file.name}"
            print_done(text, report.file, outcome=report.done)

    def problem(self, text: str) -> None:
        """Prints what is wrong with the directory or its watcher, once until it changes. The watch goes on."""
        if text != self._problem:
            print_error(text)
        self._problem = text

    def passed(self, result: Pass) -> None:
        """Prints the result of a pass, and files that cannot be read, each once."""
        if not self._answers:
            notice("the mesh answers again")
        self._answers = True
        for path, problem in result.unreadable.items() - self._unreadable.items():
            self.failed = True
            print_error(f"{path}: {problem}")
        self._unreadable = result.unreadable
        if result.is_first:
            notice(f"{count_text(result.files, 'file')} compared, {count_text(result.changes, 'change')}")

    def outage(self, error: MnemeshError) -> None:
        """Prints that the mesh does not answer, once."""
        if self._answers:
            print_error(f"{error_text(error)} The watch goes on when it answers.")
        self._answers = False
