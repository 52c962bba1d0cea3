"""Programs that run for a longer time: their task in the sandbox, and how they are supervised."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mnemesh_sandbox.inside import watch
from mnemesh_sandbox.inside.plan import OUTPUT_DIRECTORY
from mnemesh_sandbox.task import Task

PROGRAM_MEASURE_SECONDS: Final = 0.25
"""The time between measurements of a program, which may run for hours. Without a cgroup, its memory is measured."""
_SYSTEM_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FUNCTION: Final = "start"
_SOURCE: Final = """
import os
import sys


def start(command, arguments, directory):
    if directory:
        os.chdir(directory)
    os.environ.setdefault("HOME", os.getcwd())
    try:
        os.execvp(command, [command, *arguments])
    except OSError as error:
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else error.strerror
        print(f"The program {command!r} cannot be started: {reason}.", file=sys.stderr, flush=True)
        os._exit(127)
"""


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a task is supervised."""

    measure_seconds: float = watch.INTERVAL
    is_confined: bool = True
    """False: it runs without layers and without limits."""
    starts_node: bool = False
    """It becomes a program in Node, which reserves more addresses than it uses."""


AS_TOOL: Final = Supervision()


@dataclass(frozen=True, slots=True)
class Program:
    """A program with its arguments and its environment."""

    command: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    path: Sequence[str] = ()
    """Directories that come before those of the system in PATH."""
    home: str | None = None
    """Its home on the host; None for a new directory that is removed after it."""
    in_node: bool = False
    """It is executed by Node."""

    def task(self, *, confined: bool, has_home: bool) -> Task:
        """Returns the task that becomes the program."""
        interpreter = str(Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)).parent)
        path = ":".join(dict.fromkeys((*self.path, interpreter, *_SYSTEM_PATH)))
        directory = None if not has_home else OUTPUT_DIRECTORY if confined else self.home
        arguments = {"command": self.command, "arguments": list(self.arguments), "directory": directory}
        return Task(_SOURCE, _FUNCTION, arguments, {"PATH": path, "LANG": "C.UTF-8", **self.environment})
