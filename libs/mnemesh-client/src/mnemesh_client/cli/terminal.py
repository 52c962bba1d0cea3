"""Where the command line writes: replies and tables on stdout, everything about the program itself on stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

_UNBOUNDED = 4096


def output() -> Console:
    """The console of results; lines are as long as they are where a program reads them."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(file=sys.stdout, highlight=False, width=width, soft_wrap=width is not None)


def notices() -> Console:
    """The console of notices."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def notice(text: str) -> None:
    """One line about what the program does."""
    notices().print(Text("mnemesh: ", style="dim"), Text(text), sep="", end="\n")


def complain(text: str) -> None:
    """One line about what went wrong."""
    line = " ".join(text.split())
    notices().print(Text("mnemesh: ", style="bold red"), Text(line), sep="", end="\n")
