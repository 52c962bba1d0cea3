"""Reads a text that exceeds a summary model's window in consecutive parts, within bounded number and time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from mnemesh_kit.clock import Clock

from mnemesh_orchestrator.compaction.port import SummaryFailed
from mnemesh_orchestrator.llm.errors import ContextOverflow

_log = structlog.get_logger("mnemesh.compaction")

MAX_PARTS: Final = 8
MIN_CAPACITY: Final = 2_000
"""The number of characters that any summary model is assumed to accept."""
_MAX_HALVINGS: Final = 3

ReadPart = Callable[[int, int, int], Awaitable[None]]
"""Reads one part: the items from one index to another, in at most so many characters."""


@dataclass(frozen=True, slots=True)
class ChunkedReader:
    """The time limit of reading. No part is started that could not finish, with the rest, within two calls."""

    clock: Clock
    call_seconds: float

    async def read(self, sizes: Sequence[int], capacity: int, read_part: ReadPart) -> None:
        """Reads items of these sizes (in characters) in order, all at once if they fit into `capacity`.

        Each part is requested once. If the provider finds it too long, it and the rest are cut smaller. If a part
        returns nothing, or time is short, the rest is one part, from which `ask` leaves out what is too much.

        Raises:
            SummaryFailed: the last part returned nothing, the provider accepts no part however short, or the model is
                down.
        """
        started_at, slowest = self.clock.monotonic(), 0.0
        done = parts = overflows = 0
        is_hurried = False
        while done < len(sizes):
            end = len(sizes) if is_hurried else _end(sizes, done, capacity)
            part_started_at = self.clock.monotonic()
            try:
                await read_part(done, end, capacity)
            except ContextOverflow as error:
                overflows += 1
                if overflows == _MAX_HALVINGS:
                    raise SummaryFailed("the provider accepts no transcript, however short") from error
                capacity = max(MIN_CAPACITY, min(capacity, sum(sizes[done:end])) // 2)
                continue
            except SummaryFailed as error:
                if error.is_down or end == len(sizes):
                    raise
                _log.warning("summary_part_failed", why=str(error))
                is_hurried = True
                continue
            now = self.clock.monotonic()
            done, parts, slowest = end, parts + 1, max(slowest, now - part_started_at)
            is_late = now - started_at + 2 * slowest > 2 * self.call_seconds
            is_hurried = is_hurried or is_late or parts == MAX_PARTS - 1


def part_capacity(capacity: int) -> int:
    """Returns the number of characters of a part that leaves space for notes on the parts before it."""
    return capacity * 3 // 5


def _end(sizes: Sequence[int], start: int, capacity: int) -> int:
    """Returns the end index of the part that starts at `start`: as much of the rest as fits.

    If there would be too many parts, each is larger than `capacity`.
    """
    part = part_capacity(capacity)
    if sum(sizes[start:]) <= (part if start else capacity):
        return len(sizes)
    part = max(part, sum(sizes) // MAX_PARTS + 1)
    end, size = start + 1, sizes[start]
    while end < len(sizes) and size + sizes[end] <= part:
        size += sizes[end]
        end += 1
    return end
