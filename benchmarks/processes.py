"""CPU time and memory of processes, as reported by the kernel."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from mnemesh_testkit.mesh.processes import descendants


class Processes:
    """Named processes of this machine. Those in `families` include all their descendants."""

    def __init__(self, pids: Mapping[str, int], families: frozenset[str] = frozenset()) -> None:
        self._pids = pids
        self._families = families

    def cpu_ms(self) -> dict[str, float]:
        """Returns the CPU time of each since its start, user and system, in milliseconds."""
        return {name: self._sum(name, _cpu_ms) for name in self._pids}

    def resident_mb(self) -> dict[str, float]:
        """Returns the resident memory of each in megabytes of 10^6 bytes. Shared libraries count in each process."""
        return self._memory_mb("Rss")

    def proportional_mb(self) -> dict[str, float]:
        """Same as resident_mb, with each shared page divided among its processes, so that the values can be added."""
        return self._memory_mb("Pss")

    def own_mb(self) -> dict[str, float]:
        """Returns the anonymous resident memory, which the kernel cannot reclaim without swapping."""
        return self._memory_mb("Anonymous")

    async def until_idle(self, names: tuple[str, ...], *, quiet_seconds: float, at_most: float = 300.0) -> None:
        """Waits until the named processes use almost no CPU, so that background work is complete.

        Raises:
            TimeoutError: the processes stayed busy.
        """
        async with asyncio.timeout(at_most):
            while True:
                before = self.cpu_ms()
                await asyncio.sleep(quiet_seconds)
                after = self.cpu_ms()
                if all(after[name] - before[name] < quiet_seconds * 30 for name in names):
                    return

    def _memory_mb(self, figure: str) -> dict[str, float]:
        return {name: self._sum(name, lambda pid: _kilobytes(pid, figure)) * 1024 / 1e6 for name in self._pids}

    def _sum(self, name: str, read: Callable[[int], float]) -> float:
        total = read(self._pids[name])
        for pid in descendants(self._pids[name]) if name in self._families else ():
            with suppress(OSError):  # a descendant may end while it is read
                total += read(pid)
        return total


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Returns the differences by name."""
    return {name: after[name] - value for name, value in before.items()}


def _cpu_ms(pid: int) -> float:
    """Reads the process's CPU clock, whose id clock_getcpuclockid(3) computes this way on Linux."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e6


def _kilobytes(pid: int, figure: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{figure}:"):
            return int(line.split()[1])
    raise ProcessLookupError(f"process {pid} has no memory: it has ended")
