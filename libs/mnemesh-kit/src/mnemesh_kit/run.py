"""The process of a service, from its configuration to its exit code."""

import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final, TypeVar

import structlog
import uvloop

from mnemesh_kit.config import ServerConfig, StartupError
from mnemesh_kit.errors import DeadlineExceeded, StorageFull, Unavailable
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.logs import configure_logging
from mnemesh_kit.private_files import make_new_files_private, private_directory, warn_of_readable_key
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_kit.server_info import version_of
from mnemesh_kit.services import MESH, READY_VARIABLE
from mnemesh_kit.tracing import start_tracing
from mnemesh_kit.transport import raise_open_files

_log = structlog.get_logger("mnemesh.server")

DISK_ERRNO: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""A disk that is full, read-only or broken."""
OK: Final = 0
FAILED: Final = 1
CANNOT_START: Final = 2

_GC_THRESHOLD: Final = 20_000
"""Objects that are allocated between two collections of the youngest generation."""

ConfigT = TypeVar("ConfigT", bound=ServerConfig)


Service = tuple[Callable[[], Awaitable[Assembly]], ServerConfig]
"""What wires a service, on the event loop and after its data directory was created, and the settings of the service."""


def run(*services: Service, local: LocalServers | None = None) -> int:
    """Runs services until SIGTERM or SIGINT; returns the process's exit code.

    Args:
        services: in the order in which they start. They stop in the reverse order.
        local: gets the servers of the process, for calls between them.

    Returns:
        0 after an orderly stop; 1 if a background task failed; 2 if the service could not start, with the reason in
        one line on stderr.
    """
    make_new_files_private()
    raise_open_files()
    try:
        return uvloop.run(_serve(services, local))
    except StartupError as error:
        return report(error)
    except (Unavailable, DeadlineExceeded, StorageFull) as error:
        return report(StartupError(error.message))
    except OSError as error:
        if error.errno not in DISK_ERRNO:
            raise
        return report(StartupError(f"{error.filename or 'The disk'}: {error.strerror}."))


def report(error: StartupError) -> int:
    """Prints the reason why the process cannot start; returns the exit code for it."""
    print(f"mnemesh: {error}", file=sys.stderr)  # noqa: T201  (for the operator, not for the log)
    return CANNOT_START


def main(
    read: Callable[[], ConfigT],
    build: Callable[[ConfigT], Awaitable[Assembly]],
    commands: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Runs a service, or what its command line asks for instead. The body of a service's `main.py`.

    `--version` prints the distribution and its version.

    Args:
        read: returns the service's settings.
        build: wires the service.
        commands: the work that the process can do instead of serving: each argument of the command line, and the module
            with a function of that name. The function takes the settings and yields the lines of a report.

    Returns:
        The process's exit code, as for `run`.
    """
    make_new_files_private()
    try:
        match sys.argv[1:]:
            case []:
                config = read()
                return run((lambda: build(config), config))
            case ["--version"]:
                distribution = _package(build).replace("_", "-")
                print(f"{distribution} {version_of(distribution)}")  # noqa: T201
                return OK
            case [name] if name in commands:
                asyncio.run(_print_report(getattr(import_module(commands[name]), name), read(), name))
                return OK
            case _:
                choices = " | ".join((*commands, "--version"))
                raise StartupError(f"usage: python -m {_package(build)} [{choices}]")
    except StartupError as error:
        return report(error)


def _package(build: Callable[..., object]) -> str:
    return build.__module__.partition(".")[0]


async def _print_report(command: Callable[[ConfigT], AsyncIterator[str]], config: ConfigT, name: str) -> None:
    configure_logging(config, name)
    async for line in command(config):
        print(line, flush=True)  # noqa: T201  (for the operator, not for the log)


async def _serve(services: Sequence[Service], local: LocalServers | None) -> int:
    stopping, failed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _, config = services[0]
    name = _package(type(config)).removeprefix("mnemesh_") if len(services) == 1 else MESH
    configure_logging(config, name)
    private_directory(config.data_path)
    if config.auth_key_file is not None:
        warn_of_readable_key(config.auth_key_file)
    # First: channels that were opened before would have no spans.
    stop_tracing = start_tracing(name)
    if stop_tracing is not None:
        local = None  # traces have the spans of calls over gRPC
    running: list[RunningServer] = []
    try:
        for build, config in services:
            server = RunningServer(local, failed)
            # A task of its own: what it sets for the service does not reach the next one.
            address = await asyncio.create_task(server.start(await build(), config))
            running.append(server)
            _log.info("listening", address=address, data_dir=str(config.data_path), pid=os.getpid())
        _settle_memory()
        _report_ready()
        await _wait_for_first(stopping, failed)
        _log.info("stopping")
    finally:
        for server in reversed(running):
            await server.stop()
    if stop_tracing is not None:
        await asyncio.to_thread(stop_tracing)
    _log.info("stopped")
    return FAILED if failed.is_set() else OK


def _report_ready() -> None:
    """Tells the process that started this one, if it asked for it, that all services serve."""
    descriptor = os.environ.pop(READY_VARIABLE, None)
    if descriptor is not None:
        os.write(int(descriptor), b"\n")
        os.close(int(descriptor))


def _settle_memory() -> None:
    """Prepares the garbage collector for serving."""
    # The objects of the start stay. Freezing them saves full collections, which would delay calls by up to 50 ms.
    gc.collect()
    gc.freeze()
    # Reference counts free nearly all objects of a call. The default of 700 would run the collector for every call.
    gc.set_threshold(_GC_THRESHOLD, 10, 10)
    gc.enable()  # the process of several services loads them without it


async def _wait_for_first(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
