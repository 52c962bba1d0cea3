"""The packages of tools: resolved once, installed once for equal locks, and waited for within bounds."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
from mnemesh_kit.metrics import Gauge, Histogram, Metric
from mnemesh_kit.time import Clock
from mnemesh_sandbox import SandboxUnavailable
from mnemesh_types.tools import PackagesState, PackagesStatus

from mnemesh_tools.errors import SandboxTooWeak, ToolRequirementsUnmet, ToolSlotsBusy
from mnemesh_tools.model.packages import Ecosystem, PackageSet, packages_of
from mnemesh_tools.model.tools import Tool
from mnemesh_tools.packages import Installer, PackageCache, PackagesUnavailable
from mnemesh_tools.store.tools import ToolStore
from mnemesh_tools.usecases.slots import FairSlots


class PackageLock(Protocol):
    """The lock of one set of packages."""

    async def read(self) -> str | None:
        """Returns the lock, or None before the packages are resolved."""
        ...

    async def add(self, lock: str) -> str:
        """Stores a lock, and returns it; or the one that was stored meanwhile."""
        ...


class ToolPackageLock:
    """The lock of the packages of a stored tool."""

    def __init__(self, store: ToolStore, tool: Tool) -> None:
        self._store = store
        self._tool = tool

    async def read(self) -> str | None:
        """See `PackageLock.read`."""
        return self._tool.package_lock

    async def add(self, lock: str) -> str:
        """See `PackageLock.add`."""
        tool = self._tool
        return await self._store.write(tool.organization_id, lambda tx: tx.add_package_lock(tool.id, tool.spec, lock))


class ServerPackageLock:
    """The lock of the packages of a stored MCP server."""

    def __init__(self, store: ToolStore, organization_id: str, server_id: str, packages: PackageSet) -> None:
        self._store = store
        self._organization_id = organization_id
        self._server_id = server_id
        self._packages = packages

    async def read(self) -> str | None:
        """See `PackageLock.read`."""
        return await self._store.read(
            self._organization_id, lambda tx: tx.mcp.get_package_lock(self._server_id, self._packages)
        )

    async def add(self, lock: str) -> str:
        """See `PackageLock.add`."""
        return await self._store.write(
            self._organization_id, lambda tx: tx.mcp.add_package_lock(self._server_id, self._packages, lock)
        )


_RETRY_SECONDS: Final = 60.0
"""A failed build is not repeated earlier, so that calls of a tool do not repeat it all the time."""
_MAX_FAILURES: Final = 1_000
_MAX_LOCKS: Final = 1_000
_log = structlog.get_logger("mnemesh.tools.packages")


@dataclass(slots=True)
class _Build:
    state: PackagesState
    started_at: datetime
    task: asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class _Failure:
    at: float
    error: ToolRequirementsUnmet | SandboxTooWeak


class PackageService:
    """Resolves and installs the packages of tools. Equal requests share one build."""

    def __init__(
        self,
        store: ToolStore,
        clock: Clock,
        installers: Mapping[Ecosystem, Installer],
        cache: PackageCache,
        *,
        wait_seconds: float,
        slots: FairSlots,
    ) -> None:
        """Stores the parts.

        Args:
            store: The tools, with their locks.
            clock: The time of builds.
            installers: Resolve and install.
            cache: The directories of installed packages.
            wait_seconds: The longest wait of an execution for its packages.
            slots: The builds at the same time, shared between organizations.
        """
        self._store = store
        self._clock = clock
        self._installers = installers
        self._cache = cache
        self._wait_seconds = wait_seconds
        self._slots = slots
        # Each by the organization, and the lines of requirements or the key of a directory. Organizations share only
        # the work of equal builds, and directories, whose keys are the hashes of all that they contain.
        self._builds: dict[tuple[str, str], _Build] = {}
        self._running: dict[str, asyncio.Task[Any]] = {}
        """The builds that have a slot. No organization waits for the turn of another one with the same build."""
        self._failures: dict[tuple[str, str], _Failure] = {}
        self._locks: dict[tuple[str, str], str] = {}
        """The locks of requirements of tools and programs that are not stored."""
        self._preparing: set[asyncio.Task[None]] = set()
        self._seconds = Histogram("mnemesh_tools_package_build_seconds", "Builds of packages of tools.")
        self._size = Gauge(
            "mnemesh_tools_package_bytes", "The bytes of the installed packages of tools.", lambda: float(cache.total)
        )

    def metrics(self) -> list[Metric]:
        """Returns the metrics of builds."""
        return [self._seconds, self._size]

    def prepare(self, tool: Tool) -> None:
        """Begins to install the packages of a stored tool in the background."""
        packages = _packages_of(tool)
        if not packages.requirements:
            return
        self._failures.pop((tool.organization_id, packages.key), None)

        async def build() -> None:
            with suppress(
                ToolRequirementsUnmet, SandboxTooWeak, ToolSlotsBusy
            ):  # the status of the tool shows the error
                await self._directory_key(tool.organization_id, packages, ToolPackageLock(self._store, tool))

        task = asyncio.create_task(build())
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    def status(self, tool: Tool) -> PackagesStatus | None:
        """Returns the state of a stored tool's packages on this server; None if it needs none."""
        packages, lock = _packages_of(tool), tool.package_lock
        if not packages.requirements:
            return None
        locked = () if lock is None else packages.locked(lock)
        key = packages.key if lock is None else packages.directory_key(lock)
        size = self._cache.size(key)
        if size is not None:
            return PackagesStatus(PackagesState.READY, locked, size_bytes=size)
        own = tool.organization_id, key
        build, failure = self._builds.get(own), self._failures.get(own)
        if build is not None:
            return PackagesStatus(build.state, locked, started_at=build.started_at)
        if failure is not None:
            return PackagesStatus(PackagesState.FAILED, locked, error=failure.error.message)
        return PackagesStatus(PackagesState.PENDING, locked)

    @asynccontextmanager
    async def hold(
        self, organization_id: str, packages: PackageSet, stored: PackageLock | None
    ) -> AsyncIterator[Path | None]:
        """Yields the directory of the packages, which exists until the block ends; None if there are no requirements.

        Args:
            organization_id: The organization that executes the tool.
            packages: The packages that a tool or a program needs.
            stored: Where their lock is kept; None for a tool or a program that is not stored.

        Raises:
            ToolRequirementsUnmet: The packages cannot be installed, or not within the longest wait.
            ToolSlotsBusy: Too many builds of the organization wait.
            SandboxTooWeak: The host cannot confine a build.
        """
        if not packages.requirements:
            yield None
            return
        try:
            async with asyncio.timeout(self._wait_seconds):
                key = await self._directory_key(organization_id, packages, stored)
                while self._cache.size(key) is None:  # evicted in the meantime
                    key = await self._directory_key(organization_id, packages, stored)
        except TimeoutError as error:
            raise ToolRequirementsUnmet(
                f"The packages of the tool are still being installed after {self._wait_seconds:g} seconds. "
                "Try again later.",
                field=packages.field,
            ) from error
        with self._cache.hold(key) as directory:
            yield directory

    async def close(self) -> None:
        """Stops all builds."""
        tasks = [*self._preparing, *(build.task for build in self._builds.values()), *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _directory_key(self, organization_id: str, packages: PackageSet, stored: PackageLock | None) -> str:
        """Returns the key of the directory of these packages, and installs them if it does not exist."""
        lock = None if stored is None else await stored.read()
        if lock is None:
            lock = await self._lock(organization_id, packages, stored)
        key = packages.directory_key(lock)
        if self._cache.size(key) is None:
            await self._once(
                organization_id, packages, key, PackagesState.INSTALLING, lambda: self._install(packages, key, lock)
            )
        return key

    async def _lock(self, organization_id: str, packages: PackageSet, stored: PackageLock | None) -> str:
        """Returns a new lock, and keeps it: where locks are stored, or in memory for what is not stored."""
        key = packages.key
        own = organization_id, key
        if stored is None and own in self._locks:
            return self._locks[own]
        lock: str = await self._once(
            organization_id, packages, key, PackagesState.RESOLVING, lambda: self._resolve(packages)
        )
        if stored is None:
            if len(self._locks) >= _MAX_LOCKS:
                self._locks.pop(next(iter(self._locks)))
            self._locks[own] = lock
            return lock
        return await stored.add(lock)

    async def _once(
        self,
        organization_id: str,
        packages: PackageSet,
        key: str,
        state: PackagesState,
        work: Callable[[], Coroutine[Any, Any, Any]],
    ) -> Any:
        """Runs a build, or waits for the one that runs. It continues if this caller is cancelled."""
        failure = self._failures.get((organization_id, key))
        if failure is not None and time.monotonic() - failure.at < _RETRY_SECONDS:
            raise failure.error.with_traceback(None)  # else it grows each time
        build = self._builds.get((organization_id, key))
        if build is None:
            task = asyncio.create_task(self._record(organization_id, packages.field, key, work))
            build = _Build(state, self._clock.now(), task)
            self._builds[organization_id, key] = build
        return await asyncio.shield(build.task)

    async def _record(
        self, organization_id: str, field: str, key: str, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        started = time.monotonic()
        try:
            async with self._slots.hold(organization_id):
                result = await self._share(key, work)
        except (PackagesUnavailable, SandboxUnavailable) as error:
            failure = _failed(error, field)
            if len(self._failures) >= _MAX_FAILURES:
                self._failures.pop(next(iter(self._failures)))
            self._failures[organization_id, key] = _Failure(time.monotonic(), failure)
            _log.warning("packages_failed", error=failure.message)
            raise failure from error
        finally:
            self._builds.pop((organization_id, key), None)
            self._seconds.observe(time.monotonic() - started)
        self._failures.pop((organization_id, key), None)
        return result

    async def _share(self, key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.create_task(work())
            running.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(running)

    async def _resolve(self, packages: PackageSet) -> str:
        output = self._cache.new_directory()
        try:
            lock = await self._installers[packages.ecosystem].resolve(packages.lines, output)
        finally:
            await asyncio.to_thread(self._cache.discard, output)
        _log.info("packages_resolved", requirements=list(packages.lines), packages=len(packages.locked(lock)))
        return lock

    async def _install(self, packages: PackageSet, key: str, lock: str) -> None:
        if self._cache.size(key) is not None:
            return  # another organization has installed it while this one waited for its turn
        output = self._cache.new_directory()
        try:
            site = await self._installers[packages.ecosystem].install(lock, output)
            await self._cache.publish(key, site)
        finally:
            await asyncio.to_thread(self._cache.discard, output)
        _log.info("packages_installed", key=key, packages=len(packages.locked(lock)), bytes=self._cache.size(key))


def _packages_of(tool: Tool) -> PackageSet:
    return packages_of(tool.spec.source_type, tool.spec.pip_requirements, tool.spec.npm_requirements)


def _failed(error: PackagesUnavailable | SandboxUnavailable, field: str) -> ToolRequirementsUnmet | SandboxTooWeak:
    if isinstance(error, SandboxUnavailable):
        return SandboxTooWeak(f"Packages cannot be installed here. {error}", missing=",".join(error.missing))
    return ToolRequirementsUnmet(f"The packages of the tool cannot be installed: {error}.", field=field)
