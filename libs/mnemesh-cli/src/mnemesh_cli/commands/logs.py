"""`mnemesh logs`: the logs of the mesh that `mnemesh up` runs on this machine."""

import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer
from mnemesh_cli.display.records import print_json
from mnemesh_cli.display.terminal import is_json
from mnemesh_cli.options import DataDirOption
from mnemesh_cli.supervisor.config import mesh_config
from mnemesh_kit.errors import NotFound
from mnemesh_kit.services import MESH, SERVICE_NAMES

_POLL_SECONDS: Final = 0.2
_NAMES: Final = (*SERVICE_NAMES, MESH, "up")
"""The services; the process that runs them all, whose log has the lines of each; and `mnemesh up --background`."""


def _complete(incomplete: str) -> list[str]:
    return [name for name in _NAMES if name.startswith(incomplete)]


def logs(
    service: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVICE", help=f"One of {', '.join(_NAMES)}.", show_default="all", autocompletion=_complete
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines of each service to begin with.")] = 20,
    data_dir: DataDirOption = None,
) -> None:
    """Print the logs of the services of the mesh on this machine, running or not."""
    if service is not None and service not in _NAMES:
        raise typer.BadParameter(f"There is no service {service!r}. Use {', '.join(_NAMES)}.", param_hint="SERVICE")
    directory = mesh_config(data_dir).data_path / "logs"
    names = _NAMES if service is None else (service, MESH) if service in SERVICE_NAMES else (service,)
    found = [name for name in names if (directory / f"{name}.log").exists()]
    if not found and not follow:
        raise NotFound(f"There are no logs in {directory}. Start the mesh with `mnemesh up`, or use --data-dir.")
    only = service if service in SERVICE_NAMES else None
    logs_of = partial(_Log, directory, only=only, shows_name=service is None)
    followed = {name: logs_of(name) for name in found}
    for log in followed.values():
        log.print_last(lines)
        if not follow:
            log.close()
    while follow:
        sys.stdout.flush()
        time.sleep(_POLL_SECONDS)
        for name in names:
            if name not in followed:
                followed[name] = logs_of(name)
            followed[name].print_new()


class _Log:
    """A file to which lines are appended. It may be replaced by a new one, or not exist yet."""

    def __init__(self, directory: Path, name: str, *, only: str | None, shows_name: bool) -> None:
        self._path, self._service = directory / f"{name}.log", name
        # The log of one process for all services names the service in each line.
        self._marks = (f'"service":"{only}"'.encode(), f"service={only}".encode()) if only and name == MESH else ()
        self._prefix = f"{name:12} " if shows_name else ""
        self._file: BinaryIO | None = None
        self._inode = 0
        self._rest = b""

    def print_last(self, count: int) -> None:
        """Prints the last lines."""
        if self._open():
            assert self._file is not None  # noqa: S101  (it is open)
            for line in deque(filter(self._is_wanted, self._file), maxlen=count):
                self._print(line)

    def print_new(self) -> None:
        """Prints the whole lines that were appended since the last call."""
        if self._file is None and not self._open():
            return
        assert self._file is not None  # noqa: S101  (it is open)
        for line in self._file:
            self._rest += line
            if self._rest.endswith(b"\n"):
                if self._is_wanted(self._rest):
                    self._print(self._rest)
                self._rest = b""
        if self._is_replaced():
            self.close()

    def close(self) -> None:
        """Closes the file. `print_new` opens it again from its beginning."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            return False
        self._inode = self._path.stat().st_ino
        return True

    def _is_replaced(self) -> bool:
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return False

    def _is_wanted(self, line: bytes) -> bool:
        return not self._marks or any(mark in line for mark in self._marks)

    def _print(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\n")
        if is_json.get():
            print_json({"service": self._service, "line": text})
        else:
            typer.echo(self._prefix + text)
