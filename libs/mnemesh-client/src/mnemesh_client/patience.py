"""How long a client repeats a call whose connection broke, or whose server restarts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
from mnemesh_kit.backoff import Backoff
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable

from mnemesh_client.transport import sleep

T = TypeVar("T")

_BACKOFF: Final = Backoff(first=0.1, maximum=2.0)


class Patience:
    """The time for which a client repeats a call without any progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.progressed()

    def progressed(self) -> None:
        """Starts the time again, because the server answered."""
        self._failures, self._since = 0, time.monotonic()

    async def wait(self, error: MnemeshError) -> None:
        """Waits before the next attempt after an error.

        Raises:
            MnemeshError: `error` itself, if the call was refused, or the time is over.
        """
        if not is_broken_connection(error) or time.monotonic() - self._since > self._seconds:
            raise error
        self._failures += 1
        await sleep(_BACKOFF.delay(self._failures))


def is_broken_connection(error: MnemeshError) -> bool:
    """Returns whether the server did not answer: it was not reached, or it stopped during the call."""
    if isinstance(error, Unavailable | DeadlineExceeded):
        return not error.final
    return (error.reason, error.code) == ("INTERNAL", grpc.StatusCode.CANCELLED)


async def patiently(call: Callable[[], Awaitable[T]], seconds: float, on_wait: Callable[[], None] | None = None) -> T:
    """Returns the result of a call that can be repeated, as soon as the server answers.

    Args:
        call: the call. A repeat has the effect of once.
        seconds: the time for which it is repeated.
        on_wait: called before the first repeat.

    Raises:
        MnemeshError: the call was refused, or the server did not answer in time.
    """
    patience, is_first = Patience(seconds), True
    while True:
        try:
            return await call()
        except MnemeshError as error:
            if is_first and is_broken_connection(error) and on_wait is not None:
                on_wait()
            is_first = False
            await patience.wait(error)
