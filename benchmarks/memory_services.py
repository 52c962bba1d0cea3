"""Recall and archival as processes, with a PostgreSQL server if it stores their tables."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psycopg
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh_cli.supervisor.health import wait_until_serving
from mnemesh_cli.supervisor.process import ServiceProcess
from mnemesh_kit.channels import Channels
from mnemesh_kit.services import service
from mnemesh_testkit.databases.postgres import PostgresServer, running_postgres
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort

from benchmarks.processes import Processes

MEMORY_SERVICES: Final = ("recall", "archival")
ENGINES: Final = ("sqlite", "postgresql")
START_SECONDS: Final = 600.0
STOP_SECONDS: Final = 60.0
# Default settings, except those that an operator adapts to a machine of this size.
_DATA: Final = "data"
"""The services' data directory. Only its owner has access to it, and PostgreSQL runs as another user."""
_POSTGRES: Final = ("listen_addresses=", "max_connections=50", "shared_buffers=512MB", "max_wal_size=4GB")


@dataclass(frozen=True, slots=True)
class RunningServices:
    """The two running services."""

    engine: str
    directory: Path
    recall: Any
    archives: Any
    passages: Any
    processes: Processes
    postgres: PostgresServer | None

    async def disk_mb(self) -> dict[str, float]:
        """Returns the disk usage of each store in megabytes of 10^6 bytes."""
        found = {}
        for name in MEMORY_SERVICES:
            found[f"{name} vectors"] = _bytes(self.directory / _DATA / f"{name}-index") / 1e6
            if self.postgres is None:
                found[f"{name} sql"] = sum(_bytes(file) for file in (self.directory / _DATA).glob(f"{name}.db*")) / 1e6
            else:
                found[f"{name} sql"] = await _database_bytes(self.postgres, name) / 1e6
        return found


@asynccontextmanager
async def running(
    directory: Path, engine: str, more_settings: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[RunningServices]:
    """Runs both services on the stores in `directory`, which are created if they do not exist.

    They have the default settings and `more_settings`, names of variables with their values.
    """
    async with AsyncExitStack() as stack:
        postgres = None
        if engine == "postgresql":
            postgres = stack.enter_context(running_postgres(directory / "pg", _POSTGRES))
        settings = await _settings(directory / _DATA, postgres) | dict(more_settings)
        ports = {name: ReservedPort() for name in MEMORY_SERVICES}
        services = {}
        for name, port in ports.items():
            stack.callback(port.release)
            environment = {**settings, service(name).port_variable: str(port.number)}
            command = ("-m", service(name).package)
            services[name] = ServiceProcess(name, command, environment, directory / f"{name}.log")
            stack.push_async_callback(services[name].stop, STOP_SECONDS)
        await asyncio.gather(*(start(services[name], ports[name].address) for name in MEMORY_SERVICES))
        channels = Channels(deadline=120.0)
        stack.push_async_callback(channels.close)
        pids = {name: pid for name, process in services.items() if (pid := process.pid) is not None}
        if postgres is not None:
            pids["postgresql"] = postgres.pid
        archival = channels.channel(ports["archival"].address)
        yield RunningServices(
            engine,
            directory,
            MessageServiceStub(channels.channel(ports["recall"].address)),
            ArchiveServiceStub(archival),
            PassageServiceStub(archival),
            Processes(pids, frozenset({"postgresql"})),
            postgres,
        )


async def _settings(directory: Path, postgres: PostgresServer | None) -> dict[str, str]:
    foreign = ("MNEMESH_", "OTEL_")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    settings |= {
        "MNEMESH_DATA_DIR": str(directory),
        "MNEMESH_SHUTDOWN_GRACE_SECONDS": "1",
        "MNEMESH_LOG_LEVEL": "warning",
    }
    if postgres is not None:
        for name in MEMORY_SERVICES:
            await _ensure_database(postgres, name)
            settings[f"MNEMESH_{name.upper()}_DATABASE_URL"] = postgres.url(name)
    return settings


async def start(process: ServiceProcess, address: str) -> None:
    """Starts a service and waits until it serves. Raises RuntimeError with its error if it ends."""
    await process.start()
    waiting = (asyncio.create_task(wait_until_serving(address)), asyncio.create_task(process.wait()))
    try:
        await asyncio.wait(waiting, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not waiting[0].done():
            raise RuntimeError(f"{process.name} does not serve: {process.startup_error()}; its log is {process.log}")
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _ensure_database(postgres: PostgresServer, name: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True) as connection:
        found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
        if await found.fetchone() is None:
            await connection.execute(f'CREATE DATABASE "{name}"'.encode())


async def _database_bytes(postgres: PostgresServer, name: str) -> int:
    async with await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True) as connection:
        ((size,),) = await (await connection.execute("SELECT pg_database_size(%s)", [name])).fetchall()
        return int(size)


def _bytes(path: Path) -> int:
    """Returns the allocated bytes; many files are preallocated and mostly empty."""
    files: Callable[[], Any] = (lambda: [path]) if path.is_file() else (lambda: path.rglob("*"))
    return sum(file.stat().st_blocks * 512 for file in files() if file.is_file())
