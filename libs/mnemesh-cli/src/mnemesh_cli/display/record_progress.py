"""The progress bar of exports and imports of agents, on stderr if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn


@contextmanager
def record_bar(verb: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a bar, and yields the function that moves it to a number of records.

    Args:
        verb: what happens, such as "Importing".
        total: the number of all records; None if it is not known.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("records"),
    )
    more = (TimeRemainingColumn(),) if total is not None else ()
    with Progress(
        *columns, *more, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True
    ) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda count: progress.update(task, completed=count)
