"""The supervisor of a mesh: starts all services, restarts one that exits, and stops them in order."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

from mnemesh_cli.supervisor.config import DataDirectoryLock, MeshConfig, service_environment, service_module
from mnemesh_cli.supervisor.process import ServiceProcess, start_child
from mnemesh_kit.config import StartupError
from mnemesh_kit.retries import Backoff
from mnemesh_kit.services import MESH, SERVICE_NAMES, SERVICES

_RESTART_BACKOFF: Final = Backoff(first=0.25, maximum=5.0, jitter=0.0)
_STABLE_SECONDS: Final = 10.0
"""The time after which a service counts as stable: its next restart has the first delay again."""
_PORT_WAIT_SECONDS: Final = 3.0
_PORT_POLL_SECONDS: Final = 0.1
_ONE_PROCESS: Final = "mnemesh_cli.supervisor.one_process"
_MODEL_REPORT: Final = "mnemesh_cli.commands.model_report"
_CALLERS: Final = ("gateway", "orchestrator")
"""The services that call others, in the order in which they are stopped before them."""

Notify = Callable[[str], None]


class PortInUseError(StartupError):
    """Another process listens on a port of the mesh."""


def require_free_ports(config: MeshConfig) -> None:
    """Checks that each service of the mesh can listen on its port.

    Raises:
        PortInUseError: another process listens on a port. The message names the port and the variable to change.
        StartupError: the mesh cannot listen on a port for another reason.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    for spec in SERVICES:
        port = config.port(spec.name)
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((config.host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"Port {port} on {config.host} is already in use. "
                    f"Choose another port for {spec.name} with {spec.port_variable}."
                ) from error
            raise StartupError(f"Cannot listen on {config.host}:{port}: {error.strerror or error}.") from error


class Supervisor:
    """Runs the services of a mesh as child processes."""

    def __init__(
        self,
        config: MeshConfig,
        notify: Notify,
        names: Sequence[str] = SERVICE_NAMES,
        *,
        processes: bool = False,
        notice_seconds: float = 15.0,
    ) -> None:
        """Describes a mesh without starting it.

        Args:
            config: the settings of the mesh.
            notify: receives one line for each event that an operator wants to see.
            names: the services to run.
            processes: each service has a process of its own; otherwise one process runs them all.
            notice_seconds: the time between the lines about a service that is still starting.
        """
        self._processes = processes
        self.config = config
        self._notice_seconds = notice_seconds
        self._notify = notify
        self._names = names
        self._lock: DataDirectoryLock | None = None
        self._restart_tasks: list[asyncio.Task[None]] = []
        self._describing: asyncio.subprocess.Process | None = None
        self.services: dict[str, ServiceProcess] = {}

    async def start(self) -> None:
        """Starts all services at once and returns when all of them serve.

        Raises:
            StartupError: the mesh cannot start. The message is one line; no process is left running.
        """
        self.config.require_authorities()
        self._lock = DataDirectoryLock.acquire(self.config.data_path)
        try:
            self._lock.write_status(ready=False, addresses=self.config.addresses)
            await self._wait_for_free_ports()
            self._notify(f"starting; data and logs are in {self.config.data_path}")
            modules = {name: service_module(name) for name in self._names}
            if self._processes:
                for name, module in modules.items():
                    self._add(name, (name,), ("-m", module))
            else:
                # Each service starts after those that it calls.
                names = sorted(self._names, key=SERVICE_NAMES.index, reverse=True)
                self._add(MESH, names, ("-m", _ONE_PROCESS, *names))
            await self._start_services()
            if self.config.tls.is_configured:
                await self._require_accepted_certificates()
        except BaseException:
            await self.stop()
            raise
        self._restart_tasks = [asyncio.create_task(self._restart(service)) for service in self.services.values()]

    def _add(self, name: str, services: Sequence[str], arguments: Sequence[str]) -> None:
        environment: dict[str, str] = {}
        for service in services:
            environment |= service_environment(service, self.config)
        log = self.config.data_path / "logs" / f"{name}.log"
        self.services[name] = ServiceProcess(name, ("-P", *arguments), environment, log, services)

    def declare_ready(self) -> None:
        """Records in the data directory's lock file that the mesh is ready."""
        if self._lock is not None:
            self._lock.write_status(ready=True, addresses=self.config.addresses)

    async def describe_models(self) -> None:
        """Starts a process that prints what is wrong with providers, and the model of new agents, and then ends.

        It has the client, which needs more memory than the rest of this process.
        """
        environment = {**os.environ, "MNEMESH_DATA_DIR": str(self.config.data_path)}
        self._describing = await start_child(
            *("-P", "-m", _MODEL_REPORT), env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )

    async def stop(self) -> None:
        """Stops the services that call others, then those that they call. Returns when no process is left."""
        if self._describing is not None and self._describing.returncode is None:
            self._describing.kill()
            await self._describing.wait()
        for task in self._restart_tasks:
            task.cancel()
        await asyncio.gather(*self._restart_tasks, return_exceptions=True)
        self._restart_tasks = []
        callers = [[self.services[name]] for name in _CALLERS if name in self.services]
        others = [service for service in self.services.values() if service.name not in _CALLERS]
        for group in (*callers, others):
            await asyncio.gather(*(self._stop_service(service) for service in group))
        self.services = {}
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def kill(self) -> None:
        """Kills every service at once."""
        for service in self.services.values():
            service.kill()

    async def _wait_for_free_ports(self) -> None:
        """Waits for ports of processes that are just exiting, and of short outgoing connections."""
        deadline = time.monotonic() + _PORT_WAIT_SECONDS
        while True:
            try:
                return require_free_ports(self.config)
            except PortInUseError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PORT_POLL_SECONDS)

    async def _start_services(self) -> None:
        for service in self.services.values():
            await service.start()
        tasks = {asyncio.create_task(self._wait_until_ready(service)): service for service in self.services.values()}
        pending, waited = set(tasks), 0.0
        try:
            # A busy machine or a large index takes long: as long as its processes live, a start goes on.
            while pending:
                if waited >= self.config.start_seconds:
                    late = ", ".join(service.name for task, service in tasks.items() if task in pending)
                    logs = self.config.data_path / "logs"
                    raise StartupError(f"Not ready after {waited:.0f} s: {late}. See the logs in {logs}.")
                pause = min(self._notice_seconds, self.config.start_seconds - waited)
                done, pending = await asyncio.wait(pending, timeout=pause, return_when=asyncio.FIRST_EXCEPTION)
                waited += pause
                for task in done:
                    task.result()
                if pending:
                    self._report_late([service for task, service in tasks.items() if task in pending], waited)
        finally:
            for task in tasks:
                task.cancel()

    def _report_late(self, services: Sequence[ServiceProcess], waited: float) -> None:
        names = ", ".join(service.name for service in services)
        self._notify(f"still starting after {waited:.0f} s: {names}")
        for service in services:
            if warning := service.last_warning():
                self._notify(f"{service.name}: {warning}")

    async def _require_accepted_certificates(self) -> None:
        """Raises StartupError if this machine's clients cannot reach a service because of the settings of TLS."""
        from mnemesh_cli.supervisor.health import handshake_problem  # noqa: PLC0415  (with gRPC)

        for name in self._names:
            problem = await handshake_problem(name, self.config.address(name), self.config.tls)
            if problem is not None:
                raise StartupError(f"{name}: {problem}")

    async def _wait_until_ready(self, service: ServiceProcess) -> None:
        """Waits until the service serves. Raises StartupError if its process exits before."""
        exited = asyncio.create_task(service.wait())
        serving = asyncio.create_task(service.wait_until_ready())
        try:
            await asyncio.wait((exited, serving), return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                last = f": {text.rstrip('.')}" if (text := service.last_text()) else ""
                reason = f"{service.name} {_describe_exit(exited.result())} while starting{last}. See {service.log}."
                raise StartupError(service.startup_error() or reason)
            await serving
        finally:
            exited.cancel()
            serving.cancel()

    async def _restart(self, service: ServiceProcess) -> None:
        """Restarts the service whenever it exits, with a back-off while it keeps exiting."""
        failures, started = 0, time.monotonic()
        while True:
            code = await service.wait()
            failures = 1 if time.monotonic() - started > _STABLE_SECONDS else failures + 1
            reason = (service.startup_error() or f"see {service.log}") if code > 0 else None
            self._notify(f"{service.name} {_describe_exit(code)}{f' ({reason})' if reason else ''}; restarting it")
            await asyncio.sleep(_RESTART_BACKOFF.delay(failures))
            await service.start()
            started = time.monotonic()
            try:
                await self._wait_until_ready(service)
                self._notify(f"{service.name} is ready again")
            except StartupError:
                continue

    async def _stop_service(self, service: ServiceProcess) -> None:
        if not await service.stop(self.config.stop_seconds):
            self._notify(f"{service.name} did not stop within {self.config.stop_seconds:.0f} s and was killed")


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
