"""Calls to services that a turn can do without: it waits for their restart, and then continues and tells the model."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from mnemesh_kit.errors import DeadlineExceeded, ServerBusy, Unavailable

from mnemesh_orchestrator.loop.retry import RetryPolicy

T = TypeVar("T")

_log = structlog.get_logger("mnemesh.loop")


def note_of(what: str) -> str:
    """Returns the note for the model that a service cannot be reached."""
    return f"{what} cannot be reached at the moment. Go on without, and say so where it matters."


class OptionalServices:
    """Calls services without which a turn continues.

    The first turn that finds a service unavailable waits for its restart. If it stays unavailable, later turns do not
    wait until it has answered again.
    """

    def __init__(self, retry: RetryPolicy, seconds: float) -> None:
        """Creates the calls.

        Args:
            retry: repeats calls.
            seconds: the longest wait for a service.
        """
        self._retry = retry
        self._seconds = seconds
        self._missing: set[str] = set()

    async def call(self, call: Callable[[], Awaitable[T]], what: str) -> tuple[T | None, str]:
        """Returns the result of a call; None and a note for the model if the service is unavailable.

        Args:
            call: the call. It is idempotent.
            what: what the service provides, as the model knows it.

        Raises:
            StorageFull: the disk of the service is full, which is no reason to go on without what the call stores.
        """
        try:
            result = await self._retry.call(call, 0.0 if what in self._missing else self._seconds)
        except (Unavailable, DeadlineExceeded, ServerBusy) as error:
            self._missing.add(what)
            _log.warning("service_unavailable", missing=what, error=error.message)
            return None, note_of(what)
        self._missing.discard(what)
        return result, ""
