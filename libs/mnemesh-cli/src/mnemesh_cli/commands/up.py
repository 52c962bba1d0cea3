"""`mnemesh up` and `mnemesh down`: start and stop the mesh on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer
from mnemesh_cli.commands.chat import converse
from mnemesh_cli.commands.doctor import how_to_change
from mnemesh_cli.commands.first_agent import ensure_first_agent
from mnemesh_cli.display.records import print_json
from mnemesh_cli.display.terminal import notice, print_error
from mnemesh_cli.machine import mesh_config
from mnemesh_cli.options import DataDirOption
from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_cli.supervisor.data_lock import lock_holder
from mnemesh_cli.supervisor.supervisor import Supervisor
from mnemesh_client.addresses import Addresses
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import NotFound
from mnemesh_kit.private_files import private_directory
from mnemesh_kit.services import SERVICE_NAMES

_POLL_SECONDS: Final = 0.05
_PREFIX: Final = "mnemesh: "


def up(
    context: typer.Context,
    chat: Annotated[bool, typer.Option("--chat", help="Chat with the first agent; stop the mesh afterwards.")] = False,
    background: Annotated[bool, typer.Option("--background", help="Return when the mesh is ready.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Start all services of a mesh, and restart any that exits. Ctrl-C stops the mesh.

    With --json, one line on stdout says when the mesh is ready, and where its services listen.
    """
    if chat and background:
        raise typer.BadParameter("use only one of --chat and --background")
    config = mesh_config(data_dir)
    if background:
        raise typer.Exit(_start_in_background(config, as_json=context.obj.as_json))
    try:
        code = asyncio.run(_up(config, chat=chat, as_json=context.obj.as_json))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 0
    raise typer.Exit(code)


def down(context: typer.Context, data_dir: DataDirOption = None) -> None:
    """Stop the mesh that is running on the data directory."""
    config = mesh_config(data_dir)
    holder = lock_holder(config.data_path)
    if holder is None:
        _print_stopped(config, None, f"no mesh is running on {config.data_path}", as_json=context.obj.as_json)
        return
    os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + 2 * config.stop_seconds
    while lock_holder(config.data_path) is not None:
        if time.monotonic() > deadline:
            print_error(f"pid {holder.pid} does not stop; see the logs in {config.data_path / 'logs'}")
            raise typer.Exit(1)
        time.sleep(_POLL_SECONDS)
    _print_stopped(config, holder.pid, "stopped", as_json=context.obj.as_json)


def _print_stopped(config: MeshConfig, pid: int | None, text: str, *, as_json: bool) -> None:
    """Reports the process that was stopped; None if there was none."""
    if as_json:
        print_json({"data_dir": str(config.data_path), "stopped_pid": pid})
    else:
        notice(text)


async def _up(config: MeshConfig, *, chat: bool, as_json: bool) -> int:
    """Runs a mesh until the chat ends or a signal cancels this task."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101  (a coroutine always runs in one)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    started = time.monotonic()
    supervisor = Supervisor(config, notice)
    await supervisor.start()
    try:
        async with _client(config) as mnemesh:
            model = await _default_model(mnemesh)
            _announce(config, model, time.monotonic() - started)
            supervisor.declare_ready()
            if as_json:
                _print_ready(config, os.getpid())
            if chat:
                override = bool(os.environ.get("MNEMESH_MODEL"))
                agent, line = await ensure_first_agent(mnemesh, model, config.data_path, override=override)
                notice(line)
                return await converse(mnemesh, agent, as_json=as_json)
        return await asyncio.Future()
    finally:
        notice("stopping")
        try:
            await supervisor.stop()
        finally:
            supervisor.kill()


def _client(config: MeshConfig) -> Mnemesh:
    addresses = Addresses(**{name: config.address(name) for name in SERVICE_NAMES})
    return Mnemesh(addresses, auth_key_file=config.auth_key_file, tls=config.tls)


async def _default_model(mnemesh: Mnemesh) -> str:
    """Returns the orchestrator's model for new agents. MNEMESH_MODEL may name one that no provider serves."""
    try:
        return (await mnemesh.models.default()).handle
    except NotFound as error:
        raise StartupError(f"MNEMESH_MODEL cannot be used. {error.message}") from error


def _announce(config: MeshConfig, model: str, seconds: float) -> None:
    ports = ", ".join(f"{name} {config.port(name)}" for name in SERVICE_NAMES)
    notice(f"ready after {seconds:.1f} s, listening on {config.host}: {ports}")
    notice(f"model {model} ({how_to_change(model)})")
    notice(f"embedder {config.embedder} (change it with MNEMESH_EMBEDDER=provider/model)")
    notice("run `mnemesh chat` to talk to an agent; Ctrl-C or `mnemesh down` stops the mesh")


def _print_ready(config: MeshConfig, pid: int) -> None:
    addresses = {name: config.address(name) for name in SERVICE_NAMES}
    print_json({"data_dir": str(config.data_path), "pid": pid, "addresses": addresses})


def _start_in_background(config: MeshConfig, *, as_json: bool) -> int:
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
            [sys.executable, "-m", "mnemesh_cli", "up", "--data-dir", str(config.data_path)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    while process.poll() is None:
        holder = lock_holder(config.data_path)
        if holder is not None and holder.pid == process.pid and holder.ready:
            break
        time.sleep(_POLL_SECONDS)
    _repeat_notices(log, start)
    if as_json and process.returncode is None:
        _print_ready(config, process.pid)
    return process.returncode or 0


def _repeat_notices(log: Path, start: int) -> None:
    with log.open("rb") as file:
        file.seek(start)
        for line in file.read().decode(errors="replace").splitlines():
            notice(line.removeprefix(_PREFIX))
