"""The progress bar of a command that counts what it has done, on stderr if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn


@contextmanager
def counted_bar(verb: str, nouns: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a bar, and yields the function that moves it to a count.

    Args:
        verb: what happens, such as "Importing".
        nouns: what is counted, such as "records".
        total: the count at the end; None if it is not known.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(nouns),
    )
    more = (TimeRemainingColumn(),) if total is not None else ()
    with Progress(
        *columns, *more, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True
    ) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda count: progress.update(task, completed=count)
