"""Runs tasks in sandbox processes, with the isolation that a probe has found."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from mnemesh_tools.sandbox import process
from mnemesh_tools.sandbox.cgroups import Cgroups, NoCgroup, limits_of, was_out_of_memory
from mnemesh_tools.sandbox.inside import plan as layer
from mnemesh_tools.sandbox.inside import watch
from mnemesh_tools.sandbox.inside.plan import CGROUP, Limits, Plan
from mnemesh_tools.sandbox.inside.root import SHARED_MEMORY_BYTES
from mnemesh_tools.sandbox.isolation import Isolation, Level, probe
from mnemesh_tools.sandbox.outcomes import OutcomeLimits, outcome_of
from mnemesh_tools.sandbox.task import Outcome, Task
from mnemesh_tools.sandbox.uids import NoUidLeft, UidPool
from mnemesh_tools.sandbox.work_directory import remove_leftovers, work_directory

_MEGABYTE: Final = 1024 * 1024
_PROBE: Final = Task("def probe():\n    return 'ran'\n", "probe")
_PROBE_SECONDS: Final = 20.0
# The memory of the kernel for the processes, and the init process, count against the limits of a cgroup.
_KERNEL_BYTES: Final = 16 * _MEGABYTE
_OWN_PROCESSES: Final = 2


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
    stream_bytes: int = 500_000
    """The number of bytes to keep of stdout, and of stderr."""
    result_chars: int = 1_000_000


class SandboxUnavailable(Exception):
    """This host isolates tools less than the settings require."""

    def __init__(self, isolation: Isolation, minimum: Level) -> None:
        self.missing = isolation.missing
        layers = ", ".join(sorted(isolation.layers)) or "none"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in isolation.missing.items()) or "none"
        super().__init__(
            f"This host isolates tools at level {isolation.level.name.lower()}, below the configured minimum "
            f"{minimum.name.lower()} (layers: {layers}; refused: {reasons})."
        )


class Sandbox:
    """Runs user-written source. A server opens one with `Sandbox.open`."""

    def __init__(self, settings: SandboxSettings, isolation: Isolation, cgroups: Cgroups | None = None) -> None:
        self._settings = settings
        self._isolation = isolation
        self._cgroups = cgroups
        self._uids = UidPool(settings.first_uid, settings.uids)
        self._python = process.python_directories()

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
        return cls(settings, isolation, probing._cgroups)

    @property
    def isolation(self) -> Isolation:
        """The result of the probe."""
        return self._isolation

    async def run(self, task: Task, seconds: float) -> Outcome:
        """Runs a task once. None of its processes survives the call, even if it raises or is cancelled.

        Args:
            task: The task.
            seconds: The time limit.

        Raises:
            SandboxUnavailable: The isolation of the host is below the configured minimum.
        """
        self.require_minimum()
        settings = self._settings
        try:
            ended = await self._process(task, self._isolation.layers, seconds)
        except (NoCgroup, NoUidLeft) as error:
            cause = CGROUP if isinstance(error, NoCgroup) else layer.OWN_UID
            raise SandboxUnavailable(Isolation(frozenset(), {cause: str(error)}), settings.minimum) from error
        if ended.refused is not None:
            raise SandboxUnavailable(Isolation(frozenset(), dict([ended.refused])), settings.minimum)
        limits = OutcomeLimits(seconds, settings.cpu_seconds, settings.memory_mb, settings.disk_mb, settings.files)
        return outcome_of(task, ended, limits)

    def require_minimum(self) -> None:
        """Raises `SandboxUnavailable` if the isolation of the host is below the configured minimum."""
        if self._isolation.level < max(self._settings.minimum, Level.MINIMAL):
            raise SandboxUnavailable(self._isolation, self._settings.minimum)

    async def _process(self, task: Task, layers: Collection[str], seconds: float) -> process.EndedProcess:
        settings = self._settings
        async with AsyncExitStack() as stack:
            uid, claim = settings.first_uid, None
            if layer.OWN_UID in layers:
                uid, claim = stack.enter_context(self._uids.claim())
            directory = await stack.enter_async_context(work_directory(uid if claim is not None else None, layers))
            cgroup: Path | None = None
            if self._cgroups is not None:
                cgroup = await stack.enter_async_context(self._cgroups.create(self._cgroup_limits(layers)))
            ended = await process.run(
                self._plan_factory(sorted(layers), uid, claim, directory, cgroup),
                task.to_json(),
                seconds=seconds,
                stream_bytes=settings.stream_bytes,
                result_bytes=settings.result_chars * 12 + _MEGABYTE,
            )
            if ended.refused is not None and ended.refused[0] == CGROUP:
                raise NoCgroup(ended.refused[1])
            if cgroup is not None and was_out_of_memory(cgroup):
                return replace(ended, exceeded=watch.MEMORY)
            return ended

    def _cgroup_limits(self, layers: Collection[str]) -> dict[str, str]:
        """Returns the limits of a cgroup. Temporary files of a private root are memory, too."""
        files = self._settings.disk_mb * _MEGABYTE + SHARED_MEMORY_BYTES if layer.PRIVATE_ROOT in layers else 0
        memory = self._settings.memory_mb * _MEGABYTE + files + _KERNEL_BYTES
        return limits_of(memory, self._settings.processes + _OWN_PROCESSES)

    def _plan_factory(
        self, layers: list[str], uid: int, claim: int | None, directory: str | None, cgroup: Path | None
    ) -> Callable[[int, int], Plan]:
        settings = self._settings
        limits = Limits(
            cpu_seconds=settings.cpu_seconds,
            memory_bytes=settings.memory_mb * _MEGABYTE,
            processes=settings.processes,
            open_files=settings.open_files,
            disk_bytes=settings.disk_mb * _MEGABYTE,
            files=settings.files,
            output_chars=settings.result_chars,
        )

        def plan(result_fd: int, report_fd: int) -> Plan:
            return Plan(
                layers, limits, uid, os.getpid(), self._python, result_fd, report_fd, claim, directory, cgroup_path
            )

        cgroup_path = None if cgroup is None else str(cgroup)
        return plan
