"""`mnemesh watch`: a folder that follows a directory."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
from mnemesh_cli.commands.file_uploads import (
    HiddenOption,
    IgnoreOption,
    ParallelOption,
    find_or_create_folder,
)
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.directories.scan import IgnoreRules
from mnemesh_cli.directories.sync import FolderSync, Pass, SyncReport
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.records import count_text, print_done
from mnemesh_cli.display.terminal import notice, print_error
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.extras import install_hint


@with_client
async def watch(
    mnemesh: Mnemesh,
    context: typer.Context,
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
    printer = _Printer(target.name, as_json=context.obj.as_json)
    sync = FolderSync(
        mnemesh,
        target.id,
        directory,
        rules,
        printer.report,
        deletes=delete,
        parallel=parallel,
        settle_seconds=settle,
    )
    watcher = Watch(sync, on_pass=printer.passed, on_outage=printer.outage, on_problem=printer.problem, polls=poll)
    notice(f"{directory} → {target.name}{'' if once else '; Ctrl-C ends the watch'}")
    await (watcher.run_once(stop, waits=wait) if once else watcher.run(stop))
    return int(once and printer.failed)


class _Printer:
    """Prints what happens: changes of the folder to stdout, problems and the state to stderr."""

    def __init__(self, folder: str, *, as_json: bool) -> None:
        self._folder, self._as_json = folder, as_json
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
            print_done(text, report.file, as_json=self._as_json, outcome=report.done)

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
