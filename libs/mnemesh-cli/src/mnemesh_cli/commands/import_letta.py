"""`mnemesh import letta`: the migration of a Letta database, with its progress and its report."""

import asyncio
import signal
import sys
from typing import Final

from mnemesh_cli.agent_exports.records import vector_lines, vector_report
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.records import count_text, print_json
from mnemesh_cli.display.terminal import notice, output
from mnemesh_kit.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from mnemesh_kit.extras import install_hint
from mnemesh_letta.database.report import Report, problem_lines, table_lines
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
    if connection.as_json:
        print_json({**report.as_json(), "vectors": vector_report(report.vector_uses, report.without_vector)})
        return report
    vectors = vector_lines(report.vector_uses, report.without_vector)
    for line in (*table_lines(report), *vectors, *problem_lines(report)):
        output().print(line, markup=False, soft_wrap=True)
    return report
