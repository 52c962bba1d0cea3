"""What processes cost, as the kernel counts it."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from mnemesh_testkit.mesh.descendants import descendants


class Processes:
    """Named processes of this machine; those of `families` with all that come from them."""

    def __init__(self, pids: Mapping[str, int], families: frozenset[str] = frozenset()) -> None:
        self._pids = pids
        self._families = families

    def cpu_ms(self) -> dict[str, float]:
        """CPU time that each has used since it began, user and system, in milliseconds."""
        return {name: sum(_cpu_ms(pid) for pid in self._of(name)) for name in self._pids}

    def resident_mb(self) -> dict[str, float]:
        """Memory of each that is resident now, in megabytes of 10^6 bytes; shared libraries count in each process."""
        return self._memory_mb("Rss")

    def proportional_mb(self) -> dict[str, float]:
        """The same, each shared page divided among those that share it: adds up to what the machine gives."""
        return self._memory_mb("Pss")

    def own_mb(self) -> dict[str, float]:
        """Of what is resident, what no file holds: the kernel cannot take it back when others need it."""
        return self._memory_mb("Anonymous")

    async def until_idle(self, names: tuple[str, ...], *, quiet_seconds: float, at_most: float = 300.0) -> None:
        """Waits until the named ones have used next to no CPU for a while: what they do behind a call is done.

        Raises:
            TimeoutError: they kept working.
        """
        async with asyncio.timeout(at_most):
            while True:
                before = self.cpu_ms()
                await asyncio.sleep(quiet_seconds)
                after = self.cpu_ms()
                if all(after[name] - before[name] < quiet_seconds * 30 for name in names):
                    return

    def _memory_mb(self, figure: str) -> dict[str, float]:
        return {name: sum(_kilobytes(pid, figure) for pid in self._of(name)) * 1024 / 1e6 for name in self._pids}

    def _of(self, name: str) -> tuple[int, ...]:
        pid = self._pids[name]
        return (pid, *sorted(descendants(pid))) if name in self._families else (pid,)


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What came in between, by name."""
    return {name: after[name] - value for name, value in before.items()}


def _cpu_ms(pid: int) -> float:
    """By the clock that counts a process's CPU time to the nanosecond: what clock_getcpuclockid(3) gives on Linux."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e6


def _kilobytes(pid: int, figure: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{figure}:"):
            return int(line.split()[1])
    raise ProcessLookupError(f"process {pid} has no memory: it has ended")
