"""The output of the command line: results go to stdout, messages about the program itself to stderr."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

TOOL: Final = "color(31)"
ADDED: Final = "color(28)"
REMOVED: Final = "color(160)"
WARNING: Final = "color(130)"
MEMORY: Final = "bold color(133)"
SPEAKERS: Final = (TOOL, ADDED, "color(133)", "color(63)", WARNING)
"""The colours of the names of a group's members, in the order in which they first speak."""

is_json: ContextVar[bool] = ContextVar("is_json", default=False)
"""The command has the option --json, so results are JSON."""
is_wide: ContextVar[bool] = ContextVar("is_wide", default=False)
"""The command has the option --wide, so tables are not shortened."""

MODEL_LINE: Final = "model "
"""The beginning of the last line of a start."""
_UNBOUNDED: Final = 4096
_LEAST_WIDTH: Final = 20


def output() -> Console:
    """Returns the console for results. It does not wrap lines unless stdout is a terminal."""
    return _console(sys.stdout)


def notice(text: str) -> None:
    """Prints one line about the program's progress to stderr. A terminal wraps it between words."""
    _stderr().print(Text("mnemesh: ", style="dim"), Text(text), sep="", end="\n")


def print_error(text: str) -> None:
    """Prints an error to stderr, as one line. A terminal wraps it between words."""
    line = " ".join(text.split())
    _stderr().print(Text("mnemesh: ", style="bold red"), Text(line), sep="", end="\n")


@contextmanager
def reported_errors() -> Iterator[None]:
    """Prints the error that ends the program, and exits with the code for it: see `mnemesh_cli.main.main`."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of stdout is gone. Without this, Python would report a second error when it flushes stdout at exit.
        sys.stdout = None
        sys.exit(1)
    except Exception as error:
        if os.environ.get("MNEMESH_DEBUG"):
            raise
        from mnemesh_cli.display.error_text import any_error_text, exit_code  # noqa: PLC0415  (only after an error)

        print_error(any_error_text(error))
        sys.exit(exit_code(error))


def print_labelled(label: Text, text: Text) -> None:
    """Prints a text after its label to stdout. In a terminal, further lines of the text begin below the first."""
    console = output()
    if console.soft_wrap:
        console.print(label, text)
        return
    indent = label.cell_len + 1
    for number, line in enumerate(text.wrap(console, max(_LEAST_WIDTH, console.width - indent))):
        console.print(Text.assemble(label if not number else " " * (indent - 1), " ", line))


def _stderr() -> Console:
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    width = None if file.isatty() else _UNBOUNDED
    return Console(file=file, highlight=False, width=width, soft_wrap=width is not None)
