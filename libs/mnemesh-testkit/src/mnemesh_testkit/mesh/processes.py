"""The whole mesh as real processes, to be killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Self

from mnemesh_client.supervisor.health import wait_until_serving
from mnemesh_client.supervisor.process import ServiceProcess
from mnemesh_kit.services import SERVICE_NAMES

from mnemesh_testkit.failpoints.kill_orders import Deaths
from mnemesh_testkit.mesh.faulty_proxy import FaultyProxy
from mnemesh_testkit.mesh.fork_server import ForkedService, ForkServer
from mnemesh_testkit.mesh.in_process import EMBEDDER, REHEARSAL, connected
from mnemesh_testkit.mesh.reserved_ports import ReservedPort

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0


class ProcessMesh:
    """Five processes, `python -m mnemesh_<room>`; an async context manager. Arguments as of `Mesh`.

    With `forks` the processes are made by a server that has imported all rooms: they start in a tenth of the time. With
    `deaths` such processes kill themselves where they are ordered to.

    With more `orchestrators` than one there are also `orchestrator-2` and so on, each with a data directory of its own;
    they need a database that they share. The processes end with this one, whatever happens to it. Their logs are
    `<directory>/<room>.log`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        openai_base_url: str | None = None,
        anthropic_base_url: str | None = None,
        model: str = REHEARSAL,
        embedder: str = EMBEDDER,
        environment: Mapping[str, str] | None = None,
        proxied: Sequence[str] = (),
        orchestrators: int = 1,
        forks: ForkServer | None = None,
        deaths: Deaths | None = None,
    ) -> None:
        if deaths is not None and forks is None:
            raise ValueError("processes that kill themselves are forked")
        self.directory = directory
        replicas = tuple(f"orchestrator-{number}" for number in range(2, orchestrators + 1))
        self._ports = {room: ReservedPort() for room in (*SERVICE_NAMES, *replicas)}
        self.proxies = {room: FaultyProxy(self._ports[room].address) for room in proxied}
        self.addresses = {
            room: self.proxies[room].address if room in self.proxies else port.address
            for room, port in self._ports.items()
        }
        self.environment = {
            **_inherited(),
            "MNEMESH_DATA_DIR": str(directory / "data"),
            "MNEMESH_EMBEDDER": embedder,
            "MNEMESH_MODEL": model,
            "MNEMESH_SHUTDOWN_GRACE_SECONDS": "1",
            **{
                f"MNEMESH_{room.upper()}_PORT": str(port.number)
                for room, port in self._ports.items()
                if room in SERVICE_NAMES
            },
            **{f"MNEMESH_{room.upper()}_TARGET": self.addresses[room] for room in SERVICE_NAMES},
            **_provider("OPENAI", openai_base_url),
            **_provider("ANTHROPIC", anthropic_base_url),
            **({"TESTKIT_POINTS": str(deaths.directory)} if deaths is not None else {}),
            **(environment or {}),
        }
        self._forks = forks
        self._services = {room: self._service(room, room, self.environment) for room in SERVICE_NAMES}
        for name in replicas:
            own = {
                "MNEMESH_DATA_DIR": str(directory / name),
                "MNEMESH_ORCHESTRATOR_PORT": str(self._ports[name].number),
            }
            self._services[name] = self._service(name, "orchestrator", {**self.environment, **own})
        self._exits = AsyncExitStack()

    def _service(self, name: str, room: str, environment: Mapping[str, str]) -> ServiceProcess | ForkedService:
        log = self.directory / f"{name}.log"
        if self._forks is not None:
            return ForkedService(self._forks, name, room, environment, log)
        return ServiceProcess(room, ("-m", f"mnemesh_{room}"), environment, log)

    async def __aenter__(self) -> Self:
        """Starts every process and waits until all of them serve."""
        try:
            for proxy in self.proxies.values():
                await self._exits.enter_async_context(proxy)
            await asyncio.gather(*(self.start(room) for room in self._services))
        except BaseException:
            await self.__aexit__()
            raise
        self.stubs, self.client = await connected(self.addresses, self._exits)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops every process; one that does not end by itself is killed."""
        await self._exits.aclose()
        await asyncio.gather(*(service.stop(STOP_SECONDS) for service in self._services.values()))
        for port in self._ports.values():
            port.release()

    def pid(self, room: str) -> int:
        """The process id of a room that runs."""
        pid = self._services[room].pid
        if pid is None:
            raise ProcessLookupError(f"{room} does not run")
        return pid

    async def kill(self, room: str) -> None:
        """SIGKILL; returns when the process is gone."""
        self._services[room].kill()
        await self._services[room].wait()

    async def stop(self, room: str) -> None:
        """SIGTERM; returns when the process has ended by itself.

        Raises:
            TimeoutError: it had to be killed.
        """
        if not await self._services[room].stop(STOP_SECONDS):
            raise TimeoutError(f"{room} did not end by itself within {STOP_SECONDS:g} s: {self.log(room)}")

    async def start(self, room: str) -> None:
        """Starts the process of a room and waits until it says that it serves.

        Raises:
            RuntimeError: it ended, or did not serve in time; with its log.
        """
        service = self._services[room]
        await service.start()
        serving = asyncio.create_task(wait_until_serving(self._ports[room].address))
        ended = asyncio.create_task(service.wait())
        try:
            await asyncio.wait((serving, ended), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise RuntimeError(f"{room} does not serve: {self.log(room)}")
        finally:
            for task in (serving, ended):
                task.cancel()
            await asyncio.gather(serving, ended, return_exceptions=True)

    @asynccontextmanager
    async def kept(self, room: str) -> AsyncIterator[None]:
        """Starts the room again whenever it ends, as a supervisor does."""

        async def keep() -> None:
            while True:
                await self._services[room].wait()
                await self._services[room].start()

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    def log(self, room: str) -> str:
        """What the process has written."""
        return (self.directory / f"{room}.log").read_text(errors="replace")


def _inherited() -> dict[str, str]:
    """This process's environment without what would configure mnemesh or a provider."""
    foreign = ("MNEMESH_", "OPENAI_", "ANTHROPIC_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def _provider(name: str, base_url: str | None) -> dict[str, str]:
    return {} if base_url is None else {f"{name}_BASE_URL": base_url, f"{name}_API_KEY": "sk-test"}
