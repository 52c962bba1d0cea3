"""Waiting for a tier that is away, once what would be lost is journalled."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from engram_kit.clock import Clock
from engram_kit.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")

_log = structlog.get_logger("engram.loop")

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 15.0


class Patience:
    """How long a run waits for a tier in the middle of a step. Calls made through it must be safe to repeat."""

    def __init__(
        self,
        clock: Clock,
        seconds: float = 900.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._sleep = sleep

    async def with_tier(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of the call, made again with growing pauses while nobody answers.

        Raises:
            Unavailable, DeadlineExceeded: the tier stayed away for the whole time.
        """
        began, attempt = self._clock.monotonic(), 0
        while True:
            try:
                return await call()
            except (Unavailable, DeadlineExceeded) as error:
                if self._clock.monotonic() - began >= self._seconds:
                    raise
                attempt += 1
                pause = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt) * random.uniform(0.5, 1.0)  # noqa: S311
                _log.warning("a tier is away; waiting", attempt=attempt, pause=round(pause, 2), error=error.message)
                await self._sleep(pause)
