"""The progress of work on the terminal: counts, files and steps."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mnemesh.files.v1 import files_pb2
from mnemesh_cli.display.terminal import output
from mnemesh_client.uploads import OnProgress
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_NAME_CHARS = 24


@contextmanager
def counted_bar(verb: str, nouns: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a bar, and yields the function that moves it to a count.

    Args:
        verb: what happens, such as "Importing".
        nouns: what is counted, such as "records".
        total: the count at the end; None if it is not known.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(nouns))
    more = (TimeRemainingColumn(),) if total is not None else ()
    with Progress(
        *columns, *more, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True
    ) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda count: progress.update(task, completed=count)


class TransferBars:
    """A bar for all files, and one for each file that is being sent or received."""

    def __init__(self, progress: Progress, verb: str, total_bytes: int) -> None:
        self._progress = progress
        self._all = progress.add_task(verb, total=total_bytes)
        self._tasks: dict[str, TaskID] = {}
        self._moved: dict[str, int] = {}

    def of(self, name: str) -> OnProgress:
        """Returns the function that moves the bar of a file."""

        def moved(done: int, size: int) -> None:
            # A repeated part does not move the bar of all files back.
            before = self._moved.get(name, 0)
            self._moved[name] = max(before, done)
            self._progress.advance(self._all, self._moved[name] - before)
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(_short(name), total=size)
            self._progress.update(self._tasks[name], completed=done)

        return moved

    def end(self, name: str, size: int) -> None:
        """Removes the bar of a file, and counts what was not transferred."""
        self._progress.advance(self._all, max(0, size - self._moved.pop(name, 0)))
        task = self._tasks.pop(name, None)
        if task is not None:
            self._progress.remove_task(task)

    def print(self, line: str) -> None:
        """Prints a line to stdout; above the bars, if both are on the terminal."""
        console = self._progress.console if sys.stdout.isatty() and not self._progress.disable else output()
        console.print(line, markup=False, highlight=False, soft_wrap=True)


class ProcessingBar:
    """A bar for the files that the server processes: how many of them, and how much of each, is done."""

    def __init__(self, progress: Progress, files: int) -> None:
        self._progress = progress
        self._task = progress.add_task("processing", total=files)
        self._done: dict[str, float] = {}

    def show(self, file: files_pb2.File) -> None:
        """Moves the bar to the state of a file."""
        self._done[file.id] = _share(file)
        self._progress.update(self._task, completed=sum(self._done.values()))


@contextmanager
def transfer_bars(verb: str, total_bytes: int) -> Iterator[TransferBars]:
    """Shows bars for a transfer of so many bytes."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=_console(), disable=not sys.stderr.isatty(), transient=True) as progress:
        yield TransferBars(progress, verb, total_bytes)


@contextmanager
def processing_bar(files: int) -> Iterator[ProcessingBar]:
    """Shows a bar for the processing of so many files."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=None))
    more = (TaskProgressColumn(),) if files == 1 else (MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, *more, console=_console(), disable=not sys.stderr.isatty(), transient=True) as progress:
        yield ProcessingBar(progress, files)


def _share(file: files_pb2.File) -> float:
    """Returns how much of a file is processed. Parsing and embedding count as halves."""
    if file.status in (files_pb2.FILE_STATUS_COMPLETED, files_pb2.FILE_STATUS_ERROR):
        return 1.0
    if file.status == files_pb2.FILE_STATUS_EMBEDDING:
        return 0.5 + 0.5 * file.chunks_embedded / max(1, file.total_chunks)
    return 0.0


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else f"…{name[-(_NAME_CHARS - 1) :]}"


def _console() -> Console:
    return Console(file=sys.stderr)


class StepBar:
    """The bar, and lines above it."""

    def __init__(self, progress: Progress, steps: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=steps)

    def begin(self, name: str) -> None:
        self._progress.update(self._task, description=name)

    def end(self) -> None:
        """Counts the step."""
        self._progress.advance(self._task)

    def print(self, line: str) -> None:
        """Prints a line to stdout; above the bar, if both are on the terminal."""
        console = self._progress.console if sys.stdout.isatty() and not self._progress.disable else output()
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def step_bar(steps: int) -> Iterator[StepBar]:
    """Shows a bar for so many steps."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        yield StepBar(progress, steps)
