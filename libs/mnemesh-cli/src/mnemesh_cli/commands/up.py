"""`mnemesh up` and `mnemesh down`: start and stop the mesh on this machine."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Annotated, BinaryIO, Final

import typer
from mnemesh_cli.commands.foreground import print_json, print_ready, run_mesh
from mnemesh_cli.display.terminal import MODEL_LINE, is_json, notice, print_error
from mnemesh_cli.options import DataDirOption
from mnemesh_cli.supervisor.config import MeshConfig, lock_holder, mesh_config
from mnemesh_kit.config import StartupError
from mnemesh_kit.private_files import private_directory

_POLL_SECONDS: Final = 0.05
_PREFIX: Final = "mnemesh: "
_MODEL_SECONDS: Final = 6.0
"""The time for which a start in the background waits for the line about the model."""


def up(
    chat: Annotated[bool, typer.Option("--chat", help="Chat with the first agent; stop the mesh afterwards.")] = False,
    background: Annotated[bool, typer.Option("--background", help="Return when the mesh is ready.")] = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Run each service in a process of its own, as in a cluster.")
    ] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Start all services of a mesh, and restart their process if it exits. Ctrl-C stops the mesh.

    With --json, one line on stdout says when the mesh is ready, and where its services listen.
    """
    if chat and background:
        raise typer.BadParameter("use only one of --chat and --background")
    config = mesh_config(data_dir)
    if background:
        raise typer.Exit(_start_in_background(config, processes=processes))
    try:
        code = asyncio.run(run_mesh(config, processes=processes, chat=chat))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 0
    raise typer.Exit(code)


def down(data_dir: DataDirOption = None) -> None:
    """Stop the mesh that is running on the data directory."""
    config = mesh_config(data_dir)
    holder = lock_holder(config.data_path)
    if holder is None:
        _print_stopped(config, None, f"no mesh is running on {config.data_path}")
        return
    os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + 2 * config.stop_seconds
    while lock_holder(config.data_path) is not None:
        if time.monotonic() > deadline:
            print_error(f"pid {holder.pid} does not stop; see the logs in {config.data_path / 'logs'}")
            raise typer.Exit(1)
        time.sleep(_POLL_SECONDS)
    _print_stopped(config, holder.pid, "stopped")


def _print_stopped(config: MeshConfig, pid: int | None, text: str) -> None:
    """Reports the process that was stopped; None if there was none."""
    if is_json.get():
        print_json({"data_dir": str(config.data_path), "stopped_pid": pid})
    else:
        notice(text)


def _start_in_background(config: MeshConfig, *, processes: bool) -> int:
    """Starts `mnemesh up` in another session. Returns 0 when the mesh is ready, or the exit code if it exits before."""
    log = config.data_path / "logs" / "up.log"
    if private_directory(config.data_path):
        notice(f"other users had access to {config.data_path}; now only its owner has")
    try:
        log.parent.mkdir(mode=0o700, exist_ok=True)
        log_file = log.open("ab")
    except OSError as error:
        raise StartupError(
            f"The data directory {config.data_path} cannot be written: {error.strerror}. "
            "Choose another with MNEMESH_DATA_DIR."
        ) from error
    with log_file:
        start = log_file.tell()
        process = subprocess.Popen(  # noqa: S603  (this program)
            # -P: the directory in which the command runs has no modules of ours.
            [sys.executable, "-P", "-m", "mnemesh_cli", "up", *(["--processes"] if processes else [])],
            env={**os.environ, "MNEMESH_DATA_DIR": str(config.data_path)},
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    with log.open("rb") as lines:
        lines.seek(start)
        while process.poll() is None:
            _repeat_notices(lines)
            holder = lock_holder(config.data_path)
            if holder is not None and holder.pid == process.pid and holder.ready:
                break
            time.sleep(_POLL_SECONDS)
        # The line about the model follows soon, unless the server of the model is slow.
        deadline = time.monotonic() + _MODEL_SECONDS
        while not _repeat_notices(lines) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if is_json.get() and process.returncode is None:
        print_ready(config, process.pid)
    return process.returncode or 0


def _repeat_notices(log: BinaryIO) -> bool:
    """Prints the whole lines that the log got meanwhile. Returns whether one of them is about the model."""
    is_last = False
    while True:
        at = log.tell()
        line = log.readline()
        if not line.endswith(b"\n"):
            log.seek(at)
            return is_last
        text = line.decode(errors="replace").rstrip().removeprefix(_PREFIX)
        notice(text)
        is_last = is_last or text.startswith(MODEL_LINE)
