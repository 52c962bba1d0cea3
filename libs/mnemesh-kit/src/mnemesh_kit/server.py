"""A server: the parts that a service wires together (`Assembly`), and the server that runs them.

What accepts calls is a `Listener`: the gRPC server of the kit, or one that the service brings.
"""

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from mnemesh_kit.access import FindOwners, no_owners
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.auth import authenticator
from mnemesh_kit.call_context import service_context, set_service
from mnemesh_kit.config import ServerConfig, StartupError
from mnemesh_kit.errors import TEMPORARY
from mnemesh_kit.heavy_work import return_memory
from mnemesh_kit.listener import Listener, ListenerParts
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.metrics import Metric, Metrics
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql.database import TRANSACTIONS
from mnemesh_kit.tls.reloaded import report_certificates
from mnemesh_kit.tls.server import EXPIRY

T = TypeVar("T")
_log = structlog.get_logger("mnemesh.background")
BACKGROUND_BACKOFF: Final = Backoff(first=0.5, maximum=10.0)
"""The delays before a background task is started again."""
Hook = Callable[[], Awaitable[None]]
RETURN_SECONDS: Final = 60.0
"""The interval in which a server returns memory that it no longer uses to the system, in 3 ms."""
AUDIT_PURGE_SECONDS: Final = 3600.0
READY_SECONDS: Final = 3.0
"""How long a ready server may take to notice that it is asked."""
PORT_SECONDS: Final = 5.0
"""How long a server tries to get its ports."""
PORT_POLL_SECONDS: Final = 0.1


def periodic(interval: float, fn: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
    """Returns a task for `Assembly.background` that runs `fn` every `interval` seconds, first after one interval.

    A failed run is logged, and does not stop the next one.
    """

    async def task() -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await fn()
            except Exception:
                _log.exception("periodic_task_failed", task=getattr(fn, "__qualname__", repr(fn)))

    return task


async def with_pause(work: Callable[[], Awaitable[T]]) -> T:
    """Does a piece of work, and then waits for as long as it took, so that calls have half of the time."""
    began = time.monotonic()
    result = await work()
    await asyncio.sleep(time.monotonic() - began)
    return result


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. A cancellation of the caller takes effect after the end of the work."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        raise


class PortInUse(StartupError):
    """Another process listens on a port, or a connection uses it."""


@dataclass(kw_only=True)
class Assembly:
    """The parts of a service, wired together but not running yet."""

    name: str
    """The short name of the service, such as `blocks`."""
    servicers: Sequence[tuple[Callable[[Any, Any], None], Any]] = field(default_factory=tuple)
    """Pairs of a generated `add_…_to_server` and its servicer."""
    service_names: Sequence[str] = field(default_factory=tuple)
    """Full names of the gRPC services, for health, reflection and server information."""
    forwarded: Mapping[str, str] = field(default_factory=dict)
    """The targets of other gRPC services of the mesh whose calls this server forwards, by their full names."""
    listener: Callable[[ListenerParts], Listener] | None = None
    """Creates what accepts calls in place of a gRPC server."""
    audit_log: AuditLog | None = None
    """The audit log of the service. The server lists its entries, and deletes old ones."""
    find_owners: FindOwners = no_owners
    """Finds the agents to which the things of the service belong, for callers that are limited to some agents."""
    start: Sequence[Hook] = field(default_factory=tuple)
    """Hooks that run in order before the server accepts calls."""
    background: Sequence[Hook] = field(default_factory=tuple)
    """Tasks that run while the server runs. One that finds a store or service unavailable, or a disk full, is started
    again a little later. If one raises another exception, the server stops."""
    metrics: Sequence[Metric] = field(default_factory=tuple)
    """The service's own counters, gauges and histograms."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Facts about the server's host for its operator. `GetServerInfo` returns it, also without a token."""
    close: Sequence[Hook] = field(default_factory=tuple)
    """Hooks that run in reverse order after all calls are over."""


class RunningServer:
    """One server, from its start to its stop. Used by `mnemesh_kit.run`, and by meshes within one process."""

    def __init__(self, local: LocalServers | None = None, failed: asyncio.Event | None = None) -> None:
        """Prepares a server.

        Args:
            local: the servers of this process, which have this one while it serves.
            failed: is set when a background task fails; None is an event of its own.
        """
        self.address = ""
        self.metrics: Metrics | None = None
        self.failed = failed or asyncio.Event()
        """Set when a background task has failed."""
        self._assembly: Assembly | None = None
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._grace = 0.0
        self._local = local
        self._is_serving = False

    async def start(self, assembly: Assembly, config: ServerConfig) -> str:
        """Binds the port, runs the start hooks, accepts calls and becomes SERVING.

        Returns:
            The address that the server listens on, with the port that it got.

        Raises:
            StartupError: the port is taken, or the host needs authentication. The assembly is closed.
        """
        set_service(assembly.name)
        self._assembly, self._grace = assembly, config.shutdown_grace_seconds
        try:
            await _wait_for_ports(assembly.name, config)
            self._listener = self._create_listener(assembly, config)
            self.address = self._listener.bind()
            if report_certificates() and self.metrics is not None:
                self.metrics.register(EXPIRY)
            for hook in assembly.start:
                await hook()
            await self._listener.serve()
            self._is_serving = True
        except BaseException:
            await self.stop()
            raise
        background = [*assembly.background, periodic(RETURN_SECONDS, return_memory)]
        if assembly.audit_log is not None:
            background.append(periodic(AUDIT_PURGE_SECONDS, assembly.audit_log.purge))
        self._tasks = [
            asyncio.create_task(self._watch(task), context=service_context(assembly.name)) for task in background
        ]
        return self.address

    async def stop(self) -> None:
        """Becomes NOT_SERVING, lets running calls finish, stops the tasks, and closes the parts in reverse order."""
        self._is_serving = False
        if self._listener is not None:
            await self._listener.stop(self._grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.stop)
        assembly, self._assembly = self._assembly, None
        for close in reversed(assembly.close if assembly is not None else ()):
            try:
                await close()
            except Exception:
                _log.exception("close_failed", hook=_name(close))

    def _create_listener(self, assembly: Assembly, config: ServerConfig) -> Listener:
        checked = authenticator(config, assembly.name)
        own = (TRANSACTIONS[assembly.name], *assembly.metrics)
        if config.metrics_port is not None:
            self.metrics = Metrics(own)
            self.metrics.serve(config.host, config.metrics_port, self._readiness())
        parts = ListenerParts(config, checked, self.metrics, self._local)
        if assembly.listener is not None:
            return assembly.listener(parts)
        from mnemesh_kit.listener import GrpcListener  # noqa: PLC0415  (only where calls come over gRPC)

        return GrpcListener(
            assembly.name,
            assembly.servicers,
            assembly.service_names,
            assembly.properties,
            assembly.forwarded,
            own,
            assembly.audit_log,
            assembly.find_owners,
            parts,
        )

    def _readiness(self) -> Callable[[], bool]:
        """Returns a function for other threads that tells whether the server serves, and the event loop answers."""
        loop = asyncio.get_running_loop()

        def is_ready() -> bool:
            if not self._is_serving:
                return False
            answered = threading.Event()
            loop.call_soon_threadsafe(answered.set)
            return answered.wait(READY_SECONDS)

        return is_ready

    async def _watch(self, task: Hook) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await task()
            except TEMPORARY as error:
                # The task waits for its database or disk, as callers do.
                failures = 1 if time.monotonic() - began > BACKGROUND_BACKOFF.maximum else failures + 1
                delay = BACKGROUND_BACKOFF.delay(failures)
                _log.warning("background_task_waits", task=_name(task), retry_in=round(delay, 2), error=error.message)
                await asyncio.sleep(delay)
            except Exception:
                _log.exception("background_task_failed", task=_name(task))
                self.failed.set()
                return
            else:
                return


def _name(hook: Hook) -> str:
    return getattr(hook, "__qualname__", repr(hook))


async def _wait_for_ports(name: str, config: ServerConfig) -> None:
    """Waits a while until the ports of a server are free.

    After a restart, a port may be held by the process before, or by an outgoing connection: the default ports are among
    those that Linux gives to connections. Raises StartupError.
    """
    ports = [(config.metrics_port or 0, "MNEMESH_METRICS_PORT"), (config.port, f"MNEMESH_{name.upper()}_PORT")]
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            for port, variable in () if config.host.startswith("unix:") else ports:
                _require_free(config.host, port, variable)
        except PortInUse:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(PORT_POLL_SECONDS)
        else:
            return


def _require_free(host: str, port: int, variable: str) -> None:
    """Raises StartupError if the port cannot be bound; gRPC itself would only print a trace."""
    if not port:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"Port {port} on {host} is already in use. Choose another with {variable}.") from error
        raise StartupError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error
