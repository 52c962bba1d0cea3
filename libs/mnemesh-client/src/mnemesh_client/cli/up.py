"""`mnemesh up`, `mnemesh down` and `mnemesh doctor`: the mesh on this machine."""

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
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import NotFound

from mnemesh_client.addresses import Addresses
from mnemesh_client.cli import doctor as diagnosis
from mnemesh_client.cli.chat import converse
from mnemesh_client.cli.first_agent import ensure_first_agent
from mnemesh_client.cli.terminal import complain, notice, output
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.supervisor.config import ROOMS, MeshConfig
from mnemesh_client.supervisor.data_lock import lock_holder
from mnemesh_client.supervisor.supervisor import Supervisor

_POLL_SECONDS: Final = 0.05
_MARK: Final = "mnemesh: "

DataDir = Annotated[str | None, typer.Option(help="Where everything is kept; else MNEMESH_DATA_DIR, else ./data.")]


def up(
    chat: Annotated[bool, typer.Option("--chat", help="Talk to a first agent; the mesh ends with the chat.")] = False,
    background: Annotated[bool, typer.Option("--background", help="Return when the mesh is ready.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Start every service of a mesh, and keep them running until Ctrl-C."""
    if chat and background:
        raise typer.BadParameter("--chat and --background exclude each other")
    config = _config(data_dir)
    if background:
        raise typer.Exit(_in_background(config))
    try:
        code = asyncio.run(_up(config, chat))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 0
    raise typer.Exit(code)


def down(data_dir: DataDir = None) -> None:
    """Stop the mesh that was started with `mnemesh up --background`, or anywhere else on the same data directory."""
    config = _config(data_dir)
    holder = lock_holder(config.data_path)
    if holder is None:
        notice(f"nothing runs on {config.data_path}")
        return
    os.kill(int(holder["pid"]), signal.SIGTERM)
    deadline = time.monotonic() + 2 * config.stop_seconds
    while lock_holder(config.data_path) is not None:
        if time.monotonic() > deadline:
            complain(f"pid {holder['pid']} does not end; see {config.data_path / 'logs'}")
            raise typer.Exit(1)
        time.sleep(_POLL_SECONDS)
    notice("stopped")


def doctor(
    context: typer.Context,
    data_dir: DataDir = None,
) -> None:
    """Look into a mesh: Python, data directory, ports, each service's health, model and embedder."""
    findings = asyncio.run(diagnosis.examine(_config(data_dir), context.obj, os.environ))
    console = output()
    for finding in findings:
        console.print(f"{finding.mark} {finding.subject:13} {finding.text}", style=finding.style, markup=False)
    raise typer.Exit(int(any(finding.is_problem for finding in findings)))


async def _up(config: MeshConfig, chat: bool) -> int:
    """Runs a mesh to the end of the chat, or until this task is cancelled by a signal."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101  (a coroutine always runs in one)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    started = time.monotonic()
    mesh = Supervisor(config, notice)
    await mesh.start()
    try:
        async with _client(config) as mnemesh:
            model = await _default_model(mnemesh)
            _announce(config, model, time.monotonic() - started)
            mesh.declare_ready()
            if chat:
                insist = bool(os.environ.get("MNEMESH_MODEL"))
                agent, what = await ensure_first_agent(mnemesh, model, config.data_path, insist=insist)
                notice(what)
                return await converse(mnemesh, agent)
        return await asyncio.Future()
    finally:
        notice("stopping")
        try:
            await mesh.stop()
        finally:
            mesh.kill()


def _client(config: MeshConfig) -> Mnemesh:
    addresses = Addresses(**{room: config.address(room) for room in ROOMS})
    return Mnemesh(addresses, auth_key_file=config.auth_key_file)


async def _default_model(mnemesh: Mnemesh) -> str:
    """The model of new agents, as the orchestrator chose it; MNEMESH_MODEL may name one that nobody serves."""
    try:
        return (await mnemesh.models.default()).handle
    except NotFound as error:
        raise StartupError(f"MNEMESH_MODEL cannot be used. {error.message}") from error


def _announce(config: MeshConfig, model: str, seconds: float) -> None:
    rooms = ", ".join(f"{room} {config.port(room)}" for room in ROOMS)
    notice(f"ready after {seconds:.1f} s, listening on {config.host}: {rooms}")
    notice(f"model {model} ({diagnosis.how_to_change(model)})")
    notice(f"embedder {config.embedder} (change it with MNEMESH_EMBEDDER=provider/model)")
    notice("`mnemesh chat` talks to an agent; Ctrl-C here or `mnemesh down` stops the mesh")


def _in_background(config: MeshConfig) -> int:
    """Starts a supervisor of its own session, and returns its exit code, or 0 when its services answer."""
    log = config.data_path / "logs" / "up.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        output_file = log.open("ab")
    except OSError as error:
        raise StartupError(
            f"The data directory {config.data_path} cannot be written: {error.strerror}; "
            "choose another with MNEMESH_DATA_DIR."
        ) from error
    with output_file:
        begin = output_file.tell()
        process = subprocess.Popen(  # noqa: S603  (this program again)
            [sys.executable, "-m", "mnemesh_client", "up", "--data-dir", str(config.data_path)],
            stdin=subprocess.DEVNULL,
            stdout=output_file,
            stderr=output_file,
            start_new_session=True,
        )
    while process.poll() is None:
        holder = lock_holder(config.data_path)
        if holder is not None and holder.get("pid") == process.pid and holder.get("ready"):
            break
        time.sleep(_POLL_SECONDS)
    _repeat(log, begin)
    return process.returncode or 0


def _repeat(log: Path, begin: int) -> None:
    with log.open("rb") as file:
        file.seek(begin)
        for line in file.read().decode(errors="replace").splitlines():
            notice(line.removeprefix(_MARK))


def _config(data_dir: str | None) -> MeshConfig:
    return MeshConfig.from_env({**os.environ, **({"MNEMESH_DATA_DIR": data_dir} if data_dir else {})})
