"""Waiting for a tier that is away, once what would be lost is journalled."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")

_log = structlog.get_logger("mnemesh.loop")

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 15.0
RESTART_SECONDS = 5.0
"""A turn that has not begun waits so long at most: a room that is being restarted is back by then."""


class RetryPolicy:
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

    async def call(self, call: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """The result of the call, made again with growing pauses while nobody answers.

        Args:
            call: what is to be done.
            seconds: how long, where that is less than for a step.

        Raises:
            Unavailable, DeadlineExceeded: the tier stayed away for the whole time.
        """
        began, attempt = self._clock.monotonic(), 0
        most = self._seconds if seconds is None else min(seconds, self._seconds)
        while True:
            try:
                return await call()
            except (Unavailable, DeadlineExceeded) as error:
                left = began + most - self._clock.monotonic()
                if left <= 0:
                    raise
                attempt += 1
                pause = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt) * random.uniform(0.5, 1.0)  # noqa: S311
                pause = min(pause, left)
                _log.warning("a tier is away; waiting", attempt=attempt, pause=round(pause, 2), error=error.message)
                await self._sleep(pause)
