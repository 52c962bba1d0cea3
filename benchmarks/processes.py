"""What processes cost, as the kernel counts it."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path


class Processes:
    """Named processes of this machine."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids

    def cpu_ms(self) -> dict[str, float]:
        """CPU time that each has used since it began, user and system, in milliseconds."""
        return {name: time.clock_gettime_ns(_cpu_clock(pid)) / 1e6 for name, pid in self._pids.items()}

    def resident_mb(self) -> dict[str, float]:
        """Memory of each that is resident now, in megabytes of 10^6 bytes; shared libraries count in each process."""
        return {name: _kilobytes(pid, "Rss") * 1024 / 1e6 for name, pid in self._pids.items()}

    def proportional_mb(self) -> dict[str, float]:
        """The same, each shared page divided among those that share it: adds up to what the machine gives."""
        return {name: _kilobytes(pid, "Pss") * 1024 / 1e6 for name, pid in self._pids.items()}

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


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What came in between, by name."""
    return {name: after[name] - value for name, value in before.items()}


def _cpu_clock(pid: int) -> int:
    """The clock that counts a process's CPU time to the nanosecond: what clock_getcpuclockid(3) gives on Linux."""
    return (~pid << 3) | 2


def _kilobytes(pid: int, figure: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{figure}:"):
            return int(line.split()[1])
    raise ProcessLookupError(f"process {pid} has no memory: it has ended")
