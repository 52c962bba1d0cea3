"""The output of the command line: results go to stdout, messages about the program itself to stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

_UNBOUNDED = 4096


def output() -> Console:
    """Returns the console for results. It does not wrap lines unless stdout is a terminal."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(file=sys.stdout, highlight=False, width=width, soft_wrap=width is not None)


def notice(text: str) -> None:
    """Prints one line about the program's progress to stderr."""
    _stderr().print(Text("mnemesh: ", style="dim"), Text(text), sep="", end="\n")


def print_error(text: str) -> None:
    """Prints an error to stderr, as one line."""
    line = " ".join(text.split())
    _stderr().print(Text("mnemesh: ", style="bold red"), Text(line), sep="", end="\n")


def _stderr() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)
