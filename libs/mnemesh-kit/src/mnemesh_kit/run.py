"""The life of a service process: configuration to exit code, in one place."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import structlog
import uvloop

from mnemesh_kit.config import ServerConfig, StartupError
from mnemesh_kit.logs import configure_logging
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_kit.server_info import version_of
from mnemesh_kit.tracing import start_tracing

_log = structlog.get_logger("mnemesh.server")

OK: Final = 0
FAILED: Final = 1
CANNOT_START: Final = 2

ConfigT = TypeVar("ConfigT", bound=ServerConfig)


def run(build: Callable[[], Awaitable[Assembly]], config: ServerConfig) -> int:
    """Runs a service until SIGTERM or SIGINT; returns the process's exit code.

    Args:
        build: wires the service. It runs on the event loop, when the data directory is there and writable.
        config: the service's settings.

    Returns:
        0 after an orderly stop; 1 when a background task died; 2 when the service could not start, with the reason
        in one line on stderr.
    """
    try:
        return uvloop.run(_life(build, config))
    except StartupError as error:
        return refuse(error)


def refuse(error: StartupError) -> int:
    """Prints why the process cannot start; returns the exit code that says so."""
    print(f"mnemesh: {error}", file=sys.stderr)  # noqa: T201  (for the operator, not for the log)
    return CANNOT_START


def main(
    read: Callable[[], ConfigT],
    build: Callable[[ConfigT], Awaitable[Assembly]],
    work: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Reads the configuration and runs: the body of a room's `main.py`.

    Args:
        read: the service's settings.
        build: wires the service.
        work: what the process can be told to do instead, once: the name of each argument, and the module whose
            function of that name takes the settings and gives a line for each thing that it did.

    Returns:
        The process's exit code, as `run` has it.
    """
    try:
        match sys.argv[1:]:
            case []:
                config = read()
                return run(lambda: build(config), config)
            case ["--version"]:
                distribution = _package(build).replace("_", "-")
                print(f"{distribution} {version_of(distribution)}")  # noqa: T201
                return OK
            case [name] if name in work:
                asyncio.run(_tell(getattr(import_module(work[name]), name), read(), name))
                return OK
            case _:
                choices = " | ".join((*work, "--version"))
                raise StartupError(f"usage: python -m {_package(build)} [{choices}]")
    except StartupError as error:
        return refuse(error)


def _package(build: Callable[..., object]) -> str:
    return build.__module__.partition(".")[0]


async def _tell(work: Callable[[ConfigT], AsyncIterator[str]], config: ConfigT, name: str) -> None:
    configure_logging(config, name)
    async for line in work(config):
        print(line, flush=True)  # noqa: T201  (for the operator, not for the log)


async def _life(build: Callable[[], Awaitable[Assembly]], config: ServerConfig) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _require_writable(config.data_path)
    configure_logging(config, "starting")
    assembly = await build()
    configure_logging(config, assembly.name)
    stop_tracing = start_tracing(assembly.name)
    server = RunningServer()
    address = await server.start(assembly, config)
    # What the start made stays. Left to the collector, walking it again would at times hold calls up for 50 ms.
    gc.collect()
    gc.freeze()
    _log.info("listening", address=address, data_dir=str(config.data_path), pid=os.getpid())
    await _first(stopping, server.failed)
    _log.info("stopping")
    await server.stop()
    if stop_tracing is not None:
        await asyncio.to_thread(stop_tracing)
    _log.info("stopped")
    return FAILED if server.failed.is_set() else OK


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _require_writable(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StartupError(
            f"The data directory {directory} cannot be written: {error.strerror}; choose another with MNEMESH_DATA_DIR."
        ) from error
