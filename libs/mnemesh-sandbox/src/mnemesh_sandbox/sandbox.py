"""Runs tasks in sandbox processes, with the isolation that a probe has found."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from mnemesh_sandbox import process
from mnemesh_sandbox.calls import Answer
from mnemesh_sandbox.inside import plan as layer
from mnemesh_sandbox.inside import watch
from mnemesh_sandbox.inside.plan import CGROUP, Limits, Plan
from mnemesh_sandbox.inside.root import SHARED_MEMORY_BYTES
from mnemesh_sandbox.isolation import (
    Cgroups,
    Isolation,
    Level,
    NoCgroup,
    NoUidLeft,
    UidPool,
    limits_of,
    probe,
    probe_network,
    was_out_of_memory,
)
from mnemesh_sandbox.outcomes import OutcomeLimits, end_of_program, outcome_of
from mnemesh_sandbox.process import SandboxProcess, Talk
from mnemesh_sandbox.task import AS_TOOL, PROGRAM_MEASURE_SECONDS, Language, Outcome, Program, Supervision, Task
from mnemesh_sandbox.work_directory import hand_over, remove_leftovers, usage, work_directory

IDLE_SECONDS: Final = 300.0
# A small task has ended by then, so the start of the next process does not delay its answer.
_FILL_SECONDS: Final = 0.02
_MAX_PROCESSES: Final = 8
_MAX_ENDINGS: Final = 16

Key = tuple[str, ...]
"""The path of Node, or "" for Python, and the directories of packages that a process can import."""


@dataclass(slots=True)
class PreparedProcess:
    """A process that waits for its task, with what must be released after it."""

    process: SandboxProcess
    resources: AsyncExitStack
    cgroup: Path | None
    directories: tuple[int, ...] = ()
    """The inodes of the paths of its key. A directory that was removed and installed again has another one."""

    async def close(self) -> None:
        """Awaits the end of the process, whose task has ended."""
        try:
            await self.process.close()
        finally:
            await self.resources.aclose()

    async def discard(self) -> None:
        """Ends the process."""
        try:
            await self.process.discard()
        finally:
            await self.resources.aclose()


class Endings:
    """Processes whose task has ended, until the kernel has removed their namespaces."""

    def __init__(self) -> None:
        """Creates an empty set."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, process: PreparedProcess) -> None:
        """Closes a process in the background, or before it returns if the process has ended or many others end."""
        if process.process.has_ended:
            await process.close()
            return
        task = asyncio.create_task(process.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._tasks) > _MAX_ENDINGS:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Awaits the end of all."""
        await asyncio.gather(*self._tasks)


class WarmPool:
    """Keeps some processes of the keys that were used last."""

    def __init__(self, size: int, prepare: Callable[[Key], Coroutine[Any, Any, PreparedProcess]]) -> None:
        """Creates an empty pool; the first use of a key fills it.

        Args:
            size: The number of processes of each key.
            prepare: Starts a process.
        """
        self._size = size
        self._prepare = prepare
        self._waiting: dict[Key, deque[PreparedProcess]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._fills: dict[Key, asyncio.TimerHandle] = {}
        self._closed = False
        self._filling = asyncio.Lock()

    async def take(self, key: Key) -> PreparedProcess | None:
        """Returns a process that waits, or None; then replaces it in the background."""
        waiting = self._waiting.pop(key, deque())
        self._waiting[key] = waiting  # at the end: used last
        found: PreparedProcess | None = None
        while waiting and found is None:
            candidate = waiting.popleft()
            if candidate.process.has_ended or candidate.directories != inodes(key):
                self._start(candidate.discard())
            else:
                found = candidate
        self._fill_soon(key)
        self._restart_idle_timer()
        return found

    async def close(self) -> None:
        """Ends all processes."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        for timer in self._fills.values():
            timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._empty()

    def _fill_soon(self, key: Key) -> None:
        def fill() -> None:
            del self._fills[key]
            self._start(self._fill(key))

        if not self._closed and key not in self._fills:
            self._fills[key] = asyncio.get_running_loop().call_later(_FILL_SECONDS, fill)

    async def _fill(self, key: Key) -> None:
        # One after another, because each start uses the processor and the event loop.
        async with self._filling:
            while not self._closed and key in self._waiting and len(self._waiting[key]) < self._size:
                process = await self._prepare(key)
                if self._closed or key not in self._waiting:
                    await process.discard()
                    return
                self._waiting[key].append(process)
                while sum(map(len, self._waiting.values())) > _MAX_PROCESSES:
                    oldest, found = next((name, found) for name, found in self._waiting.items() if found)
                    surplus = found.popleft()
                    if not found:
                        del self._waiting[oldest]
                    await surplus.discard()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a process that cannot be started is reported by the execution that needs one

    def _restart_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, lambda: self._start(self._empty()))

    async def _empty(self) -> None:
        processes = [process for waiting in self._waiting.values() for process in waiting]
        self._waiting.clear()
        for each in processes:
            await each.discard()


def inodes(key: Key) -> tuple[int, ...]:
    """Returns the inodes of the paths of a key; 0 for one that does not exist."""
    return tuple(Path(path).stat().st_ino if path and Path(path).exists() else 0 for path in key)


_MEGABYTE: Final = 1024 * 1024
_PROBE: Final = Task("def probe():\n    return 'ran'\n", "probe")
_PROBE_SECONDS: Final = 20.0
# The memory of the kernel for the processes, and the init process, count against the limits of a cgroup.
_KERNEL_BYTES: Final = 16 * _MEGABYTE
_OWN_PROCESSES: Final = 2
# The search of longer texts for secrets takes too long for the event loop.
_LARGE_BYTES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The limits of every task."""

    minimum: Level = Level.RESTRICTED
    first_uid: int = 61_000
    uids: int = 1000
    cpu_seconds: int = 60
    memory_mb: int = 512
    processes: int = 32
    disk_mb: int = 64
    files: int = 16_384
    """The number of files and directories of a task."""
    open_files: int = 256
    cgroup: str = ""
    """A cgroup for those of tasks; empty for the own cgroup of the service, if systemd delegated it."""
    node: str = ""
    """The path of Node, which executes JavaScript and TypeScript; empty if there is none."""
    stream_bytes: int = 500_000
    """The number of bytes to keep of stdout, and of stderr."""
    result_chars: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The resources that one task can use in addition to the system and the interpreter."""

    calls: Answer | None = None
    """Answers the calls of tools that a program makes."""
    serve: process.Serve | None = None
    """Serves the network of the task: a proxy on the listener that it receives."""
    packages: tuple[str, ...] = ()
    """Directories of packages that it can import."""
    programs: tuple[str, ...] = ()
    """Files of the host that it can read and execute."""
    output: str | None = None
    """A directory of the host that it fills."""
    talk: Talk | None = None
    """Uses its standard streams while it runs."""

    @property
    def is_plain(self) -> bool:
        """Whether packages are all that it reaches."""
        others = (self.calls, self.serve, self.output, self.talk)
        return all(other is None for other in others) and not self.programs

    @property
    def needs_full_isolation(self) -> bool:
        """Whether only the level FULL can confine it."""
        return self.serve is not None or self.output is not None


class SandboxUnavailable(Exception):
    """This host isolates tools less than the settings or the access of a task require."""

    def __init__(self, isolation: Isolation, minimum: Level, what: str = "Tools") -> None:
        """Stores why.

        Args:
            isolation: The isolation of the host.
            minimum: The level that is required.
            what: What requires it.
        """
        self.missing = isolation.missing
        level, required = isolation.level.name.lower(), minimum.name.lower()
        layers = ", ".join(sorted(isolation.layers)) or "none"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in isolation.missing.items()) or "none"
        super().__init__(
            f"{what} need the sandbox level {required}; this host provides {level} "
            f"(layers: {layers}; refused: {reasons}).{_REMEDY}"
        )


class OutputTooLarge(Exception):
    """The directory of a program has so much that the program is not started any more."""

    def __init__(self, size: int, count: int, limits: Limits) -> None:
        """Names what there is, and the limits."""
        super().__init__(
            f"The directory of the program has {size // _MEGABYTE:,} MB in {count:,} files, more than twice the limit "
            f"of {limits.disk_bytes // _MEGABYTE:,} MB or {limits.files:,} files. It is removed with the server."
        )


class NetworkUnavailable(SandboxUnavailable):
    """This host has the level FULL, but its network namespaces cannot be used."""

    def __init__(self, problem: str) -> None:
        """Stores the problem that the probe of the network found."""
        self.missing = {"network": problem}
        Exception.__init__(self, f"{_WITH_NETWORK} cannot be confined on this host: {problem}.{_REMEDY}")


_REMEDY: Final = " docs/operations.md (The sandbox) shows what the host, or the container of the service, must allow."
_WITH_NETWORK: Final = "Tools with network access, and the installation of packages,"


class Sandbox:
    """Runs user-written source. A server opens one with `Sandbox.open`."""

    def __init__(self, settings: SandboxSettings, isolation: Isolation, cgroups: Cgroups | None = None) -> None:
        self._settings = settings
        self._isolation = isolation
        self._cgroups = cgroups
        self._uids = UidPool(settings.first_uid, settings.uids)
        self._python = process.python_directories()
        # The longest first, because one can be within another.
        self._paths = dict.fromkeys(
            sorted((*self._python, str(Path(__file__).parent)), key=len, reverse=True), "<python>"
        )
        self._pool: WarmPool | None = None
        self._endings = Endings()

    @classmethod
    async def open(cls, settings: SandboxSettings, *, layers: Collection[str] | None = None) -> Self:
        """Probes the host and returns a sandbox with every layer that it supports.

        Args:
            settings: The limits of every task.
            layers: The layers to try; by default all.
        """
        await asyncio.to_thread(remove_leftovers, range(settings.first_uid, settings.first_uid + settings.uids))
        probing, no_cgroup = cls(settings, Isolation(frozenset())), ""
        try:
            probing._cgroups = Cgroups.open(settings.cgroup)
        except NoCgroup as error:
            no_cgroup = str(error)

        async def attempt(chosen: Collection[str]) -> tuple[str, str] | None:
            nonlocal no_cgroup
            try:
                ended = await probing._process(_PROBE, chosen, _PROBE_SECONDS)
            except NoCgroup as error:
                probing._cgroups, no_cgroup = None, str(error)
                return await attempt(chosen)
            except NoUidLeft as error:
                return layer.OWN_UID, str(error)
            if ended.refused is not None:
                return ended.refused
            if b'"ran"' in ended.result.data:
                return None
            return "", ended.stderr.data.decode(errors="replace")[-500:] or f"wait status {ended.status}"

        isolation = await probe(attempt, layers)
        missing = {**isolation.missing, **({CGROUP: no_cgroup} if probing._cgroups is None else {})}
        isolation = replace(isolation, missing=missing, has_cgroup=probing._cgroups is not None)
        if isolation.level is Level.FULL:
            accessing = partial(probing._process, layers=isolation.layers, seconds=_PROBE_SECONDS)
            problem = await probe_network(lambda task, serve: accessing(task, access=Access(serve=serve)))
            isolation = replace(isolation, network_problem=problem)
        await probing.close()
        return cls(settings, isolation, probing._cgroups)

    @property
    def isolation(self) -> Isolation:
        """The result of the probe."""
        return self._isolation

    async def run(
        self, task: Task, seconds: float, access: Access = Access(), held: AsyncExitStack | None = None
    ) -> Outcome:
        """Runs a task once. None of its processes survives the call, even if it raises or is cancelled.

        Args:
            task: The task.
            seconds: The time limit.
            access: What the task can reach.
            held: What the task holds until the last process of its sandbox has ended, a moment after the result: it is
                taken out of the stack and released then. It stays there if no process was started.

        Raises:
            SandboxUnavailable: The isolation of the host is below the configured minimum, or too weak for this access.
            OSError: The content of the task cannot be read.
        """
        self._require(access)
        settings = self._settings
        ended = await self._start(task, self._isolation.layers, seconds, access, held=held)
        limits = OutcomeLimits(seconds, settings.cpu_seconds, settings.memory_mb, settings.disk_mb, settings.files)
        size = len(ended.result.data) + len(ended.stdout.data) + len(ended.stderr.data)
        paths = {**dict.fromkeys(access.packages, "<packages>"), **self._paths}
        if size > (_LARGE_BYTES if task.secrets else _MEGABYTE):
            return await asyncio.to_thread(outcome_of, task, ended, limits, paths)
        return outcome_of(task, ended, limits, paths)

    async def run_program(self, program: Program, access: Access, *, confined: bool = True) -> str:
        """Runs a program until it ends, or until the talk with it ends. None of its processes survives the call.

        Args:
            program: The program.
            access: What it can reach. `output`, if set, is its home: its content is handed over to the program first.
            confined: False runs it without a sandbox and without limits, as the user of this process.

        Returns:
            Why it ended.

        Raises:
            SandboxUnavailable: The isolation of the host is below the configured minimum, or too weak for this access.
        """
        if confined:
            self._require(access)
        task = program.task(confined=confined, has_home=access.output is not None)
        layers = self._isolation.layers if confined else ()
        supervision = Supervision(PROGRAM_MEASURE_SECONDS, confined, program.in_node)
        ended = await self._start(task, layers, None, access, supervision)
        settings = self._settings
        limits = OutcomeLimits(0, settings.cpu_seconds, settings.memory_mb, settings.disk_mb, settings.files)
        return end_of_program(ended, limits)

    def warmed(self, size: int) -> Self:
        """Returns a sandbox that keeps `size` processes waiting for tasks. It must be closed."""
        warmed = type(self)(self._settings, self._isolation, self._cgroups)
        if size:
            layers = self._isolation.layers
            warmed._pool = WarmPool(
                size, lambda key: warmed._prepare(layers, key[0], Access(packages=key[1:]), waits=True)
            )
        return warmed

    async def close(self) -> None:
        """Ends the processes that wait for tasks, and awaits the end of the others. No task runs any more."""
        if self._pool is not None:
            await self._pool.close()
        await self._endings.close()

    def require_minimum(self) -> None:
        """Raises `SandboxUnavailable` if the isolation of the host is below the configured minimum."""
        if self._isolation.level < max(self._settings.minimum, Level.MINIMAL):
            raise SandboxUnavailable(self._isolation, self._settings.minimum)

    def with_settings(self, settings: SandboxSettings) -> Self:
        """Returns a sandbox with the same isolation and other limits. It is closed with this one."""
        sandbox = type(self)(settings, self._isolation, self._cgroups)
        sandbox._endings = self._endings
        return sandbox

    def require_full(self) -> None:
        """Raises `SandboxUnavailable` if this host cannot confine a task with access to a network or a directory."""
        if self._isolation.level < Level.FULL:
            raise SandboxUnavailable(self._isolation, Level.FULL, _WITH_NETWORK)

    def _require(self, access: Access) -> None:
        """Raises `SandboxUnavailable` if this host cannot confine a task with this access."""
        self.require_minimum()
        if access.needs_full_isolation:
            self.require_full()
        problem = self._isolation.network_problem
        if access.serve is not None and problem is not None:
            raise NetworkUnavailable(problem)

    async def _start(
        self,
        task: Task,
        layers: Collection[str],
        seconds: float | None,
        access: Access,
        supervision: Supervision = AS_TOOL,
        held: AsyncExitStack | None = None,
    ) -> process.EndedProcess:
        """Runs a task. Raises `SandboxUnavailable` if the host refuses a layer."""
        try:
            ended = await self._process(task, layers, seconds, access, supervision, held)
        except (NoCgroup, NoUidLeft) as error:
            cause = CGROUP if isinstance(error, NoCgroup) else layer.OWN_UID
            raise SandboxUnavailable(Isolation(frozenset(), {cause: str(error)}), self._settings.minimum) from error
        if ended.refused is not None:
            raise SandboxUnavailable(Isolation(frozenset(), dict([ended.refused])), self._settings.minimum)
        return ended

    async def _process(
        self,
        task: Task,
        layers: Collection[str],
        seconds: float | None,
        access: Access = Access(),
        supervision: Supervision = AS_TOOL,
        held: AsyncExitStack | None = None,
    ) -> process.EndedProcess:
        program = "" if task.language is Language.PYTHON else self._settings.node
        prepared: PreparedProcess | None = None
        if self._pool is not None and access.is_plain:
            prepared = await self._pool.take((program, *access.packages))
        if prepared is None:
            prepared = await self._prepare(layers, program, access, supervision)
        if held is not None:
            prepared.resources.push_async_exit(held.pop_all())
        try:
            ended = await prepared.process.execute(task.to_json(), seconds, task.content)
            if ended.refused is not None and ended.refused[0] == CGROUP:
                raise NoCgroup(ended.refused[1])
            if prepared.cgroup is not None and was_out_of_memory(prepared.cgroup):
                return replace(ended, exceeded=watch.MEMORY)
            return ended
        finally:
            await self._endings.add(prepared)

    async def _prepare(
        self,
        layers: Collection[str],
        program: str,
        access: Access,
        supervision: Supervision = AS_TOOL,
        *,
        waits: bool = False,
    ) -> PreparedProcess:
        """Starts a process for a task, in Node if `program` is its path. It `waits` if there is no task yet."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            uid, claim = settings.first_uid, None
            if layer.OWN_UID in layers:
                uid, claim = stack.enter_context(self._uids.claim())
            # A program without a sandbox has a directory like one with Landlock.
            needs = layers if supervision.is_confined else (layer.LANDLOCK,)
            directory = await stack.enter_async_context(work_directory(uid if claim is not None else None, needs))
            if access.talk is not None and access.output is not None and claim is not None:
                await asyncio.to_thread(hand_over, access.output, uid)
            limits = self._limits()
            if access.talk is not None and access.output is not None:
                limits = await self._limits_with(access.output)
            cgroup: Path | None = None
            if self._cgroups is not None and supervision.is_confined:
                cgroup = await stack.enter_async_context(self._cgroups.create(self._cgroup_limits(layers)))
            started = process.SandboxProcess(
                self._plan_factory(
                    sorted(layers), limits, uid, claim, directory, cgroup, program, access, supervision, waits=waits
                ),
                stream_bytes=settings.stream_bytes,
                result_bytes=settings.result_chars * 12 + _MEGABYTE,
                serve=access.serve,
                answer=access.calls,
                talk=access.talk,
            )
            return PreparedProcess(started, stack.pop_all(), cgroup, inodes((program, *access.packages)))

    def _limits(self) -> Limits:
        settings = self._settings
        return Limits(
            cpu_seconds=settings.cpu_seconds,
            memory_bytes=settings.memory_mb * _MEGABYTE,
            processes=settings.processes,
            open_files=settings.open_files,
            disk_bytes=settings.disk_mb * _MEGABYTE,
            files=settings.files,
            output_chars=settings.result_chars,
        )

    async def _limits_with(self, output: str) -> Limits:
        """Returns the limits of a program with a directory that it has filled before, maybe beyond them.

        It may keep what is there, so that it can start and remove some of it.

        Raises:
            OutputTooLarge: The directory has more than twice of what it may have.
        """
        limits = self._limits()
        size, count = await asyncio.to_thread(usage, output)
        if size > 2 * limits.disk_bytes or count > 2 * limits.files:
            raise OutputTooLarge(size, count, limits)
        return replace(limits, disk_bytes=max(size, limits.disk_bytes), files=max(count, limits.files))

    def _cgroup_limits(self, layers: Collection[str]) -> dict[str, str]:
        """Returns the limits of a cgroup. Temporary files of a private root are memory, too."""
        files = self._settings.disk_mb * _MEGABYTE + SHARED_MEMORY_BYTES if layer.PRIVATE_ROOT in layers else 0
        memory = self._settings.memory_mb * _MEGABYTE + files + _KERNEL_BYTES
        return limits_of(memory, self._settings.processes + _OWN_PROCESSES)

    def _plan_factory(
        self,
        layers: list[str],
        limits: Limits,
        uid: int,
        claim: int | None,
        directory: str | None,
        cgroup: Path | None,
        program: str,
        access: Access,
        supervision: Supervision,
        *,
        waits: bool,
    ) -> Callable[[process.Descriptors], Plan]:
        def plan(descriptors: process.Descriptors) -> Plan:
            return Plan(
                layers=layers,
                limits=limits,
                uid=uid,
                parent_pid=os.getpid(),
                python_directories=self._python,
                result_fd=descriptors.result,
                report_fd=descriptors.report,
                claim_fd=claim,
                work_directory=directory,
                cgroup=None if cgroup is None else str(cgroup),
                proxy_fd=descriptors.proxy,
                calls_fd=descriptors.calls,
                replies_fd=descriptors.replies,
                node=program or None,
                waits=waits,
                package_directories=list(access.packages),
                programs=[*access.programs, *([program] if program else [])],
                output_directory=access.output,
                input_fd=descriptors.input,
                starts_node=supervision.starts_node,
                measure_seconds=supervision.measure_seconds,
                is_confined=supervision.is_confined,
            )

        return plan
