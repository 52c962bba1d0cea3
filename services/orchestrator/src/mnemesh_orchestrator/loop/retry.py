"""Calls of a service that does not answer: they are repeated once the journal is stored, or done without."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import structlog
from mnemesh_kit.errors import TEMPORARY, DeadlineExceeded, MnemeshError, ServerBusy, Unavailable
from mnemesh_kit.retries import Backoff
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.model.journal import Lease

T = TypeVar("T")

_log = structlog.get_logger("mnemesh.loop")

SERVICE_BACKOFF: Final = Backoff(first=0.2, maximum=15.0, jitter=0.5)
RESTART_SECONDS: Final = 5.0
"""The limit for a caller who waits and whose run is not accepted yet; longer than the restart of a service."""


class RetryPolicy:
    """Retries calls to other services during a step. Calls must be idempotent, or be repeated after NOT_BEGUN only.

    Args:
        clock: the source of elapsed time.
        seconds: the time after which a failed call is not repeated.
        sleep: waits between attempts.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: float = 900.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._sleep = sleep

    async def call(
        self,
        call: Callable[[], Awaitable[T]],
        seconds: float | None = None,
        errors: tuple[type[MnemeshError], ...] = TEMPORARY,
    ) -> T:
        """Returns the result of the call; repeats it while the infrastructure fails.

        Args:
            call: the call to make.
            seconds: a shorter limit than the one for a step.
            errors: the errors after which the call may be repeated.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: the service did not recover within the limit.
        """
        began, attempt = self._clock.monotonic(), 0
        limit = self._seconds if seconds is None else min(seconds, self._seconds)
        while True:
            try:
                return await call()
            except errors as error:
                left = began + limit - self._clock.monotonic()
                if left <= 0:
                    raise
                attempt += 1
                delay = min(SERVICE_BACKOFF.delay(attempt), left)
                _log.warning("service_unavailable", attempt=attempt, retry_in=round(delay, 2), error=error.message)
                await self._sleep(delay)


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


class RecallWrites:
    """Gives writes to recall their epoch.

    The orchestrator's database decides who holds a conversation. Recall only refuses writes of earlier holders, by
    their lower epoch. If it refuses a lease that is held, its epoch comes from a database that was replaced by an older
    backup, or from a caller that may not write. The lease then overtakes it.
    """

    def __init__(self, overtake: Callable[[Lease, int], Awaitable[int]]) -> None:
        """Creates the writes of one process.

        Args:
            overtake: raises the epochs of a held lease above one that recall knows; see `LeaseStore.overtake`.
        """
        self._overtake = overtake
        self._raised: WeakKeyDictionary[Lease, int] = WeakKeyDictionary()

    async def write(self, lease: Lease, write: Callable[[int], Awaitable[T]]) -> T:
        """Returns the result of a write, which gets the epoch of the lease.

        Raises:
            LeaseLost: another process holds the conversation now.
        """
        epoch = self._raised.get(lease, lease.recall_epoch)
        try:
            return await write(epoch)
        except LeaseLost as error:
            known = error.metadata.get("epoch", "")
            if not known.isdecimal() or int(known) <= epoch:
                raise
            raised = await self._overtake(lease, int(known))
            _log.warning("epoch_overtaken", conversation_id=lease.conversation_id, epoch=raised, known=int(known))
            self._raised[lease] = raised
            return await write(raised)
