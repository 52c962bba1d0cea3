"""The mesh in the foreground of `mnemesh up`, whose process supervises it as long as it runs.

This module loads no parser of options: the usual start needs none, and it would stay in memory.
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from mnemesh_cli.display.terminal import is_json, notice, reported_errors
from mnemesh_cli.supervisor.config import MeshConfig, mesh_config
from mnemesh_cli.supervisor.supervisor import Supervisor
from mnemesh_kit.private_files import make_new_files_private
from mnemesh_kit.services import SERVICE_NAMES


def main() -> None:
    """Runs a mesh with the settings of the environment, as `mnemesh up` does without options but `--json`."""
    make_new_files_private()
    is_json.set("--json" in sys.argv)
    code = 0
    with reported_errors():
        try:
            code = asyncio.run(run_mesh(mesh_config(None), processes=False, chat=False))
        except (KeyboardInterrupt, asyncio.CancelledError):
            code = 0
    sys.exit(code)


async def run_mesh(config: MeshConfig, *, processes: bool, chat: bool) -> int:
    """Runs a mesh until the chat ends or a signal cancels this task."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101  (a coroutine always runs in one)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    started = time.monotonic()
    supervisor = Supervisor(config, notice, processes=processes)
    await supervisor.start()
    try:
        _announce(config, time.monotonic() - started)
        supervisor.declare_ready()
        if is_json.get():
            print_ready(config, os.getpid())
        if chat:
            from mnemesh_cli.commands.model_report import chat_with_first_agent  # noqa: PLC0415

            return await chat_with_first_agent(config)
        await supervisor.describe_models()
        return await asyncio.Future()
    finally:
        notice("stopping")
        try:
            await supervisor.stop()
        finally:
            supervisor.kill()


def _announce(config: MeshConfig, seconds: float) -> None:
    ports = ", ".join(f"{name} {config.port(name)}" for name in SERVICE_NAMES)
    notice(f"ready after {seconds:.1f} s, listening on {config.host}: {ports}")
    scheme = "https" if os.environ.get("MNEMESH_GATEWAY_TLS_CERT_FILE") else "http"
    notice(f"console at {scheme}://{config.address('gateway')}/ (in a browser)")
    notice(f"embedder {config.embedder} (change it with MNEMESH_EMBEDDER=provider/model)")
    notice("run `mnemesh chat` to talk to an agent; Ctrl-C or `mnemesh down` stops the mesh")


def print_ready(config: MeshConfig, pid: int) -> None:
    """Prints where the services listen, and the process that supervises them, as JSON."""
    addresses = {name: config.address(name) for name in SERVICE_NAMES}
    print_json({"data_dir": str(config.data_path), "pid": pid, "addresses": addresses})


def print_json(row: dict[str, Any]) -> None:
    """Prints a result as one line of JSON."""
    print(json.dumps(row, ensure_ascii=False), flush=True)  # noqa: T201  (stdout has the results of commands)
