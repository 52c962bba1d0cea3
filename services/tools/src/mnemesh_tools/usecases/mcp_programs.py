"""The programs of stdio servers: started in the sandbox, counted, restarted with a delay, and never left behind."""

import asyncio
import json
import time
import uuid
from collections import Counter as Multiset
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.metrics import Counter, Gauge, Metric
from mnemesh_kit.time import Clock
from mnemesh_sandbox import Access, Program, Sandbox, SandboxUnavailable
from mnemesh_sandbox.node import NodeProgram
from mnemesh_sandbox.process import Serve, Talk
from mnemesh_sandbox.sandbox import OutputTooLarge
from mnemesh_sandbox.work_directory import remove_tree
from mnemesh_types.tools import ProgramHealth

from mnemesh_tools.mcp_clients.contracts import McpContactFailed, McpTarget
from mnemesh_tools.model.definitions import network_grant
from mnemesh_tools.model.mcp_settings import McpProgram, ProgramSettings
from mnemesh_tools.model.packages import INSTALL_NODE, Ecosystem, PackageSet, require_network_access
from mnemesh_tools.store.tools import ToolStore
from mnemesh_tools.usecases.networks import ToolNetworks
from mnemesh_tools.usecases.packages import PackageService, ServerPackageLock

K = TypeVar("K")
V = TypeVar("V")
_LONGEST_DELAY_SECONDS: Final = 60.0
_STABLE_SECONDS: Final = 60.0
"""A program that ran for longer is started again at once when it crashes."""
_MAX_KNOWN: Final = 10_000
"""The servers, and the programs, of which something is kept."""
_TRIED: Final = "tried-"
_log = structlog.get_logger("mnemesh.tools.mcp")


_ServerKey = tuple[str, str]
"""An organization, and its server."""
_ProgramKey = tuple[str, str, str]
"""An organization, its server, and the values of the caller's variables: see `McpTarget.partition`."""


@dataclass(slots=True)
class _Health:
    """What the record of a server shows of its programs."""

    running: int = 0
    starts: int = 0
    crashes: int = 0
    started_at: datetime | None = None
    output: Callable[[], str] = field(default=str)


@dataclass(slots=True)
class _Starts:
    """When a program may start again. Other programs of its server do not wait for it."""

    started: float = 0.0
    crashes_in_a_row: int = 0
    not_before: float = 0.0
    last_output: str = ""


class McpPrograms:
    """Starts the programs of stdio servers."""

    def __init__(
        self,
        settings: ProgramSettings,
        store: ToolStore,
        sandbox: Sandbox,
        networks: ToolNetworks,
        packages: PackageService,
        clock: Clock,
        node: NodeProgram | None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._sandbox = sandbox
        self._networks = networks
        self._packages = packages
        self._clock = clock
        self._node = node
        self._running: Multiset[str] = Multiset()
        # Nothing is kept of settings that are only tried: trials share nothing with each other or with a server.
        self._healths: dict[_ServerKey, _Health] = {}
        self._starts: dict[_ProgramKey, _Starts] = {}
        self._directories: dict[Path, asyncio.Lock] = {}
        self._crashes = Counter(
            "mnemesh_tools_mcp_program_crashes", "Programs of MCP servers that ended by themselves."
        )

    def metrics(self) -> list[Metric]:
        running = Gauge(
            "mnemesh_tools_mcp_programs", "Running programs of MCP servers.", lambda: float(self._running.total())
        )
        return [running, self._crashes]

    def health(self, organization_id: str, server_id: str) -> ProgramHealth | None:
        """Returns the processes of a server on this host; None if none was started."""
        found = self._healths.get((organization_id, server_id))
        if found is None:
            return None
        return ProgramHealth(found.running, found.starts, found.crashes, found.started_at, found.output())

    def forget(self, organization_id: str, server_id: str) -> None:
        """Forgets the crashes of a server whose settings have changed."""
        for key in [key for key in self._starts if key[:2] == (organization_id, server_id)]:
            del self._starts[key]

    def is_full(self, organization_id: str) -> bool:
        """Returns whether the organization can have no further program now."""
        return (
            self._running.total() >= self.settings.processes
            or self._running[organization_id] >= self.settings.per_organization
        )

    async def run(self, target: McpTarget, talk: Talk, output: Callable[[], str]) -> str:
        """Runs the program of a server until it ends, or until the talk with it ends.

        Args:
            target: The server.
            talk: Uses the streams of the program.
            output: Returns the end of what the program wrote beside its messages, without secrets.

        Returns:
            Why it ended.

        Raises:
            McpContactFailed: It cannot be started.
        """
        health, starts = self._known(target)
        _require_start(starts)
        if self.is_full(target.organization_id):
            raise McpContactFailed(
                f"This server runs {self._running.total()} programs already, {self._running[target.organization_id]} "
                "of them for this organization. Try again later."
            )
        self._running[target.organization_id] += 1

        async def watched(*streams: Any) -> None:
            health.starts += 1
            starts.started, health.started_at = time.monotonic(), self._clock.now()
            health.output = output
            await talk(*streams)

        health.running += 1
        try:
            return await self._start(target, watched)
        finally:
            health.running -= 1
            self._running[target.organization_id] -= 1
            last = starts.last_output = output()
            health.output = lambda: last

    def crashed(self, target: McpTarget) -> None:
        """Records that a program ended by itself; the next start waits longer after each crash."""
        self._crashes.inc()
        health, starts = self._known(target)
        health.crashes += 1
        now = time.monotonic()
        in_a_row = 1 if now - starts.started > _STABLE_SECONDS else starts.crashes_in_a_row + 1
        delay = 0.0 if in_a_row == 1 else min(_LONGEST_DELAY_SECONDS, 2.0 ** (in_a_row - 2))
        starts.crashes_in_a_row, starts.not_before = in_a_row, now + delay
        _log.warning("mcp_program_crashed", mcp_server_id=target.server_id, crashes=health.crashes, delay=delay)

    async def delete(self, organization_id: str, server_id: str) -> None:
        """Removes what is kept of a server that was deleted, and whose programs have ended."""
        self.forget(organization_id, server_id)
        self._healths.pop((organization_id, server_id), None)
        await self._remove_directory(server_id)

    async def sweep(self, known: Callable[[Collection[str]], Awaitable[Collection[str]]]) -> None:
        """Removes the directories of servers that do not exist any more, and those that killed services left.

        Args:
            known: Returns which of these ids belong to servers.
        """
        if not self.settings.directory.exists():
            return
        found = [path.name for path in self.settings.directory.iterdir() if path not in self._directories]
        kept = set(await known([name for name in found if not name.startswith(_TRIED)]))
        for name in found:
            if name not in kept:
                await self._remove_directory(name)

    async def _remove_directory(self, name: str) -> None:
        path = self.settings.directory / name
        if path.exists():
            await asyncio.to_thread(remove_tree, str(path))

    def _known(self, target: McpTarget) -> tuple[_Health, _Starts]:
        """Returns what is known of the programs of a server, and of this one."""
        if not target.is_stored:
            return _Health(), _Starts()
        server = target.organization_id, target.server_id
        return _kept(self._healths, server, _Health), _kept(self._starts, (*server, target.partition), _Starts)

    async def _start(self, target: McpTarget, talk: Talk) -> str:
        settings, program = self.settings, target.program
        node = self._node
        if program.npm_requirements and node is None:
            raise McpContactFailed(f"This server has no Node.js, which programs of npm packages need. {INSTALL_NODE}")
        confined = not settings.trusts(target.organization_id)
        try:
            async with AsyncExitStack() as stack:
                pip = await self._hold(stack, target, PackageSet(Ecosystem.PIP, program.pip_requirements))
                npm = await self._hold(stack, target, PackageSet(Ecosystem.NPM, program.npm_requirements))
                home = await stack.enter_async_context(self._home(target))
                serve = self._serve(target) if confined else None
                in_node = npm is not None or program.command in ("node", "npm", "npx")
                access = Access(
                    serve=serve,
                    packages=tuple(path for path in (pip, npm) if path is not None),
                    programs=() if node is None else (node.path,),
                    output=None if home is None else str(home),
                    talk=talk,
                )
                own = {} if pip is None else {"PYTHONPATH": pip, "OMP_NUM_THREADS": "1"}
                if serve is not None:
                    own["NODE_USE_ENV_PROXY"] = "1"
                command = Program(
                    program.command if npm is None else _npm_command(Path(npm), program),
                    program.args,
                    {**own, **dict(target.environment)},
                    (
                        *(() if pip is None else (f"{pip}/bin",)),
                        *(() if npm is None else (f"{npm}/node_modules/.bin",)),
                        *(() if node is None else (str(Path(node.path).parent),)),
                    ),
                    None if home is None else str(home),
                    in_node,
                )
                return await self._sandbox.run_program(command, access, confined=confined)
        except (SandboxUnavailable, OutputTooLarge) as error:
            raise McpContactFailed(str(error)) from error
        except MnemeshError as error:
            raise McpContactFailed(error.message) from error

    async def _hold(self, stack: AsyncExitStack, target: McpTarget, packages: PackageSet) -> str | None:
        """Returns the directory of packages, which exists until the stack is closed; None if there are none."""
        stored = None
        if target.is_stored and packages.requirements:
            stored = ServerPackageLock(self._store, target.organization_id, target.server_id, packages)
        path = await stack.enter_async_context(self._packages.hold(target.organization_id, packages, stored))
        return None if path is None else str(path)

    def _serve(self, target: McpTarget) -> Serve | None:
        hosts = target.program.network_hosts
        require_network_access(
            self._networks.access, "stdio.network_hosts", allow_network=False, names_hosts=bool(hosts)
        )
        grant = network_grant(hosts, "stdio.network_hosts", allow_network=False)
        proxy = self._networks.proxy(
            target.organization_id, target.server_id, grant, dict(target.environment), is_long=True
        )
        return None if proxy is None else proxy.serve

    @asynccontextmanager
    async def _home(self, target: McpTarget) -> AsyncIterator[Path | None]:
        """Yields the directory of a server, which no other process uses; None if it needs none."""
        if not target.program.persistent_directory:
            yield None
            return
        name = target.server_id if target.is_stored else f"{_TRIED}{uuid.uuid4().hex}"
        parent = self.settings.directory / name
        path = parent / (target.partition or "shared")
        lock = self._directories.setdefault(path, asyncio.Lock())
        try:
            async with lock:
                parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.mkdir(exist_ok=True, mode=0o700)
                yield path
        finally:
            if not lock.locked():
                self._directories.pop(path, None)
            if not target.is_stored:
                await asyncio.shield(asyncio.to_thread(remove_tree, str(parent)))


def _kept(known: dict[K, V], key: K, create: Callable[[], V]) -> V:
    """Returns the value of a key, which is created in place of the oldest one if there are too many."""
    if key not in known and len(known) >= _MAX_KNOWN:
        del known[next(iter(known))]
    return known.setdefault(key, create())


def _require_start(starts: _Starts) -> None:
    """Raises McpContactFailed if a program that has crashed may not start yet."""
    wait = starts.not_before - time.monotonic()
    if wait > 0:
        raise McpContactFailed(
            f"The program ended {starts.crashes_in_a_row} times in a row, and is not started before {wait:.0f} seconds "
            f"from now. Its last output: …{' '.join(starts.last_output.split())[-300:]}"
        )


def _npm_command(directory: Path, program: McpProgram) -> str:
    """Returns the program to start: as with npx, the only one of a package stands for the name of the package."""
    for requirement in program.npm_requirements:
        if requirement.name.rpartition("/")[2] == program.command:
            manifest = directory / "node_modules" / requirement.name / "package.json"
            try:
                programs = json.loads(manifest.read_text()).get("bin")
            except (OSError, ValueError, AttributeError):
                continue
            if isinstance(programs, dict) and len(programs) == 1:
                return str(next(iter(programs)))
    return program.command
