"""A whole mesh as real processes, which a test can kill."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Self

from mnemesh_cli.supervisor.health import wait_until_ready
from mnemesh_cli.supervisor.process import ServiceProcess
from mnemesh_kit.config import TlsSettings
from mnemesh_kit.services import MESH, SERVICE_NAMES, STORE_NAMES

from mnemesh_testkit.failpoints.kill_orders import KillOrders
from mnemesh_testkit.mesh.faulty_proxy import FaultyProxy, ReservedPort
from mnemesh_testkit.mesh.fork_server import ForkedService, ForkServer
from mnemesh_testkit.mesh.in_process import EMBEDDER, REHEARSAL, client_tls, connect, tls_environment
from mnemesh_testkit.timeouts import scaled


def descendants(pid: int) -> set[int]:
    """Returns all descendants of `pid`, without zombies."""
    parents = _parents()
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Returns the processes that still run."""
    return pids & set(_parents())


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it has ended since
            if state != "Z":
                parents[int(process.name)] = int(parent)
    return parents


START_SECONDS: Final = scaled(60)
STOP_SECONDS: Final = scaled(15)


class ProcessMesh:
    """All services, each as a process; an async context manager. See `Mesh` for the arguments they share.

    The processes end with this one, however it ends. Their logs are `<directory>/<service>.log`.

    Args:
        environment: variables of every process, which override all others.
        replicas: how many replicas of services run, by service. The others are `orchestrator-2` and so on, each with
            its own data directory; they need a shared database. Services call all replicas of another.
        fork_server: forks the processes, which then start ten times faster.
        kill_orders: where such processes record their failpoints and find orders to kill themselves.
        gateway: whether the mesh has a gateway. Only tests of it need one.
        one_process: whether one process, whose name is `mesh`, runs all services.
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
        replicas: Mapping[str, int] | None = None,
        fork_server: ForkServer | None = None,
        kill_orders: KillOrders | None = None,
        gateway: bool = False,
        certificates: Path | None = None,
        one_process: bool = False,
    ) -> None:
        if kill_orders is not None and fork_server is None:
            raise ValueError("kill_orders needs a fork_server")
        self.directory = directory
        self._tls = client_tls(certificates) if certificates is not None else TlsSettings()
        others = {
            f"{service}-{number}": service
            for service, count in (replicas or {}).items()
            for number in range(2, count + 1)
        }
        known = (*(("gateway",) if gateway else ()), *STORE_NAMES)
        services = tuple(sorted(known, key=SERVICE_NAMES.index, reverse=True))  # each after those that it calls
        self._ports = {service: ReservedPort() for service in (*services, *others)}
        self.proxies = {service: FaultyProxy(self._ports[service].address) for service in proxied}
        self.addresses = {
            service: self.proxies[service].address if service in self.proxies else port.address
            for service, port in self._ports.items()
        }
        self.environment = {
            **_inherited(),
            "MNEMESH_DATA_DIR": str(directory / "data"),
            "MNEMESH_EMBEDDER": embedder,
            "MNEMESH_MODEL": model,
            "MNEMESH_TOOLS_WARM_PROCESSES": "0",  # tests count the processes of a tool
            "MNEMESH_SHUTDOWN_GRACE_SECONDS": "1",
            **{
                f"MNEMESH_{service.upper()}_PORT": str(port.number)
                for service, port in self._ports.items()
                if service in services
            },
            **{f"MNEMESH_{service.upper()}_TARGET": self.target(service) for service in services},
            **_provider("OPENAI", openai_base_url),
            **_provider("ANTHROPIC", anthropic_base_url),
            **({"TESTKIT_FAILPOINTS": str(kill_orders.directory)} if kill_orders is not None else {}),
            **(tls_environment(certificates) if certificates is not None else {}),
            **(environment or {}),
        }
        self._fork_server = fork_server
        self._served = {name: (name,) for name in services} if not one_process else {MESH: services}
        self._services = {name: self._service(name, name, self.environment, fork_server) for name in self._served}
        for name in others:
            self._served[name] = (name,)
            self.change(name)
        self._exits = AsyncExitStack()

    def _service(
        self, name: str, service: str, environment: Mapping[str, str], fork_server: ForkServer | None
    ) -> ServiceProcess | ForkedService:
        log = self.directory / f"{name}.log"
        if fork_server is not None:
            return ForkedService(fork_server, name, service, environment, log, self._served[name])
        names = self._served[name]
        arguments = ("mnemesh_cli.supervisor.one_process", *names) if service == MESH else (f"mnemesh_{service}",)
        return ServiceProcess(service, ("-m", *arguments), environment, log, names)

    async def __aenter__(self) -> Self:
        """Starts every process and waits until all of them serve."""
        try:
            for proxy in self.proxies.values():
                await self._exits.enter_async_context(proxy)
            await asyncio.gather(*(self.start(service) for service in self._services))
        except BaseException:
            await self.__aexit__()
            raise
        self.stubs, self.client = await connect(self.addresses, self._exits, self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops every process; one that does not end by itself is killed."""
        await self._exits.aclose()
        await asyncio.gather(*(service.stop(STOP_SECONDS) for service in self._services.values()))
        for port in self._ports.values():
            port.release()

    def target(self, service: str) -> str:
        """Returns the address of a service for gRPC: of all its replicas, whose calls are distributed."""
        found = [address for name, address in self.addresses.items() if name.partition("-")[0] == service]
        return found[0] if len(found) == 1 else f"ipv4:{','.join(found)}"

    def change(self, name: str, fork_server: ForkServer | None = None) -> None:
        """Sets the server that forks a process from its next start on: it may have imported another version."""
        service = name.partition("-")[0]
        own = (
            {}
            if name == service
            else {
                "MNEMESH_DATA_DIR": str(self.directory / name),
                f"MNEMESH_{service.upper()}_PORT": str(self._ports[name].number),
            }
        )
        environment = {**self.environment, **own}
        self._services[name] = self._service(name, service, environment, fork_server or self._fork_server)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._services)

    def pid(self, service: str) -> int:
        """Returns the process id of a running service."""
        pid = self._services[service].pid
        if pid is None:
            raise ProcessLookupError(f"{service} does not run")
        return pid

    async def kill(self, service: str) -> None:
        """Sends SIGKILL and waits for the end of the process."""
        self._services[service].kill()
        await self._services[service].wait()

    async def stop(self, service: str) -> None:
        """Sends SIGTERM and waits until the process has ended by itself.

        Raises:
            TimeoutError: it did not, and was killed.
        """
        if not await self._services[service].stop(STOP_SECONDS):
            raise TimeoutError(f"{service} did not end by itself within {STOP_SECONDS:g} s: {self.log(service)}")

    async def start(self, service: str) -> None:
        """Starts the process of a service and waits until it serves.

        Raises:
            RuntimeError: it ended, or did not serve in time. The text contains its log.
        """
        process = self._services[service]
        await process.start()
        serving = asyncio.ensure_future(
            asyncio.gather(
                *(
                    wait_until_ready(name.partition("-")[0], self._ports[name].address, self._tls)
                    for name in self._served[service]
                )
            )
        )
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((serving, ended), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise RuntimeError(f"{service} does not serve: {self.log(service)}")
        finally:
            for task in (serving, ended):
                task.cancel()
            await asyncio.gather(serving, ended, return_exceptions=True)

    @asynccontextmanager
    async def restarting(self, service: str) -> AsyncIterator[None]:
        """Restarts the service whenever it ends, as the supervisor does."""

        async def restart() -> None:
            while True:
                await self._services[service].wait()
                await self._services[service].start()

        restarting = asyncio.create_task(restart())
        try:
            yield
        finally:
            restarting.cancel()
            await asyncio.gather(restarting, return_exceptions=True)

    def log(self, service: str) -> str:
        """Returns the log of a service's processes."""
        return (self.directory / f"{service}.log").read_text(errors="replace")


def _inherited() -> dict[str, str]:
    """Returns this process's environment without the variables of mnemesh and of providers."""
    foreign = ("MNEMESH_", "OPENAI_", "ANTHROPIC_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def _provider(name: str, base_url: str | None) -> dict[str, str]:
    return {} if base_url is None else {f"{name}_BASE_URL": base_url, f"{name}_API_KEY": "sk-test"}
