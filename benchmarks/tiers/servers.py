"""Recall and archival as processes of their own, and PostgreSQL beside them where it keeps their tables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh_client.supervisor.health import wait_until_serving
from mnemesh_client.supervisor.process import ServiceProcess
from mnemesh_kit.channels import Channels
from mnemesh_testkit.databases.postgres import PostgresServer, running_postgres
from mnemesh_testkit.mesh.reserved_ports import ReservedPort

from benchmarks.processes import Processes

ROOMS: Final = ("recall", "archival")
ENGINES: Final = ("sqlite", "postgresql")
START_SECONDS: Final = 600.0
STOP_SECONDS: Final = 60.0
# A server as it comes, but for what an operator gives it on a machine of this size.
_POSTGRES: Final = ("listen_addresses=", "max_connections=50", "shared_buffers=512MB", "max_wal_size=4GB")


@dataclass(frozen=True, slots=True)
class Running:
    """The two services, answering."""

    engine: str
    directory: Path
    recall: Any
    archives: Any
    passages: Any
    processes: Processes
    postgres: PostgresServer | None

    async def disk_mb(self) -> dict[str, float]:
        """What each store takes on the disk, in megabytes of 10^6 bytes."""
        found = {}
        for room in ROOMS:
            found[f"{room} vectors"] = _bytes(self.directory / f"{room}-index") / 1e6
            if self.postgres is None:
                found[f"{room} sql"] = sum(_bytes(file) for file in self.directory.glob(f"{room}.db*")) / 1e6
            else:
                found[f"{room} sql"] = await _database_bytes(self.postgres, room) / 1e6
        return found


@asynccontextmanager
async def running(directory: Path, engine: str) -> AsyncIterator[Running]:
    """Both services over the stores in `directory`, which are made where they are not."""
    async with AsyncExitStack() as stack:
        postgres = None
        if engine == "postgresql":
            postgres = stack.enter_context(running_postgres(directory / "pg", _POSTGRES))
        settings = await _settings(directory, postgres)
        ports = {room: ReservedPort() for room in ROOMS}
        services = {}
        for room, port in ports.items():
            stack.callback(port.release)
            environment = {**settings, f"MNEMESH_{room.upper()}_PORT": str(port.number)}
            services[room] = ServiceProcess(room, ("-m", f"mnemesh_{room}"), environment, directory / f"{room}.log")
            stack.push_async_callback(services[room].stop, STOP_SECONDS)
        await asyncio.gather(*(_start(services[room], ports[room].address) for room in ROOMS))
        channels = Channels(deadline=120.0)
        stack.push_async_callback(channels.close)
        pids = {room: pid for room, service in services.items() if (pid := service.pid) is not None}
        if postgres is not None:
            pids["postgresql"] = postgres.pid
        archival = channels.channel(ports["archival"].address)
        yield Running(
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
        for room in ROOMS:
            await _ensure_database(postgres, room)
            settings[f"MNEMESH_{room.upper()}_DATABASE_URL"] = postgres.url(room)
    return settings


async def _start(service: ServiceProcess, address: str) -> None:
    await service.start()
    waiting = (asyncio.create_task(wait_until_serving(address)), asyncio.create_task(service.wait()))
    try:
        await asyncio.wait(waiting, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not waiting[0].done():
            raise RuntimeError(f"{service.name} does not serve: {service.startup_error()}; its log is {service.log}")
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _ensure_database(postgres: PostgresServer, name: str) -> None:
    connection = await asyncpg.connect(postgres.url())
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
            await connection.execute(f'CREATE DATABASE "{name}"')
    finally:
        await connection.close()


async def _database_bytes(postgres: PostgresServer, name: str) -> int:
    connection = await asyncpg.connect(postgres.url())
    try:
        return int(await connection.fetchval("SELECT pg_database_size($1)", name))
    finally:
        await connection.close()


def _bytes(path: Path) -> int:
    """What files take; many are preallocated and hardly filled."""
    files: Callable[[], Any] = (lambda: [path]) if path.is_file() else (lambda: path.rglob("*"))
    return sum(file.stat().st_blocks * 512 for file in files() if file.is_file())
