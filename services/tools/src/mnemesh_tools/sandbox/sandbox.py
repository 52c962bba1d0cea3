"""Runs tasks in sandbox processes, with the isolation that a probe has found."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

from mnemesh_tools.sandbox import process
from mnemesh_tools.sandbox.inside import plan as layer
from mnemesh_tools.sandbox.inside.plan import Limits, Plan
from mnemesh_tools.sandbox.isolation import Isolation, Level, probe
from mnemesh_tools.sandbox.outcomes import OutcomeLimits, outcome_of
from mnemesh_tools.sandbox.task import Outcome, Task
from mnemesh_tools.sandbox.uids import UidPool
from mnemesh_tools.sandbox.work_directory import remove_leftovers, work_directory

_MEGABYTE: Final = 1024 * 1024
_PROBE: Final = Task("def probe():\n    return 'ran'\n", "probe")
_PROBE_SECONDS: Final = 20.0


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

    def __init__(self, settings: SandboxSettings, isolation: Isolation) -> None:
        self._settings = settings
        self._isolation = isolation
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
        probing = cls(settings, Isolation(frozenset()))

        async def attempt(chosen: Collection[str]) -> tuple[str, str] | None:
            ended = await probing._process(_PROBE, chosen, _PROBE_SECONDS)
            if ended.refused is not None:
                return ended.refused
            if b'"ran"' in ended.result.data:
                return None
            return "", ended.stderr.data.decode(errors="replace")[-500:] or f"wait status {ended.status}"

        return cls(settings, await probe(attempt, layers))

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
        ended = await self._process(task, self._isolation.layers, seconds)
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
        with ExitStack() as stack:
            uid, claim = settings.first_uid, None
            if layer.OWN_UID in layers:
                uid, claim = stack.enter_context(self._uids.claim())
            async with work_directory(uid if claim is not None else None, layers) as directory:
                return await process.run(
                    self._plan_factory(sorted(layers), uid, claim, directory),
                    task.to_json(),
                    seconds=seconds,
                    stream_bytes=settings.stream_bytes,
                    result_bytes=settings.result_chars * 12 + _MEGABYTE,
                )

    def _plan_factory(
        self, layers: list[str], uid: int, claim: int | None, directory: str | None
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
            return Plan(layers, limits, uid, os.getpid(), self._python, result_fd, report_fd, claim, directory)

        return plan
