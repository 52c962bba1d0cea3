"""Reading what does not fit a summariser's window: in consecutive parts, a bounded number of them in a bounded time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from mnemesh_kit.clock import Clock

from mnemesh_orchestrator.compaction.port import SummaryFailed
from mnemesh_orchestrator.llm.errors import ContextOverflow

_log = structlog.get_logger("mnemesh.compaction")

MOST_PARTS: Final = 8
LEAST_ROOM: Final = 2_000
"""Characters that any summariser is taken to read at once."""
_HALVINGS: Final = 3

Ask = Callable[[int, int, int], Awaitable[None]]
"""Has a part read: items from a place up to another, in so many characters at most."""


@dataclass(frozen=True, slots=True)
class Stages:
    """How long reading may take: no part is begun that would hardly be over, with the rest, in two calls' time."""

    clock: Clock
    call_seconds: float

    async def read(self, sizes: Sequence[int], room: int, ask: Ask) -> None:
        """Has items of these sizes (characters) read in order, all at once where they fit into `room`.

        A part is asked for once; where the provider finds it too long, it and what follows are cut smaller. Where a
        part gives nothing, or time is short, all that is left is one part, of which `ask` leaves out what is too much.

        Raises:
            SummaryFailed: the last part gives nothing, or the provider takes none however short, or the model is down.
        """
        began, slowest = self.clock.monotonic(), 0.0
        done = parts = overflows = 0
        is_hurried = False
        while done < len(sizes):
            end = len(sizes) if is_hurried else _end(sizes, done, room)
            asked = self.clock.monotonic()
            try:
                await ask(done, end, room)
            except ContextOverflow as error:
                overflows += 1
                if overflows == _HALVINGS:
                    raise SummaryFailed("the provider does not take the transcript, however short") from error
                room = max(LEAST_ROOM, min(room, sum(sizes[done:end])) // 2)
                continue
            except SummaryFailed as error:
                if error.is_down or end == len(sizes):
                    raise
                _log.warning("a part gives nothing; the rest is read at once", why=str(error))
                is_hurried = True
                continue
            now = self.clock.monotonic()
            done, parts, slowest = end, parts + 1, max(slowest, now - asked)
            is_late = now - began + 2 * slowest > 2 * self.call_seconds
            is_hurried = is_hurried or is_late or parts == MOST_PARTS - 1


def capacity_of(room: int) -> int:
    """Characters of a part that leave room for notes on what came before it."""
    return room * 3 // 5


def _end(sizes: Sequence[int], start: int, room: int) -> int:
    """Where the part that begins at a place ends: behind what is left, where it fits, else behind as much as fits.

    Of what would be too many parts each is larger than the room.
    """
    capacity = capacity_of(room)
    if sum(sizes[start:]) <= (capacity if start else room):
        return len(sizes)
    capacity = max(capacity, sum(sizes) // MOST_PARTS + 1)
    end, taken = start + 1, sizes[start]
    while end < len(sizes) and taken + sizes[end] <= capacity:
        taken += sizes[end]
        end += 1
    return end
