"""A progress bar of a command with a known number of named steps, on stderr if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mnemesh_cli.display.terminal import output
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class StepBar:
    """The bar, and lines above it."""

    def __init__(self, progress: Progress, steps: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=steps)

    def begin(self, name: str) -> None:
        """Shows the name of the step that begins."""
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
