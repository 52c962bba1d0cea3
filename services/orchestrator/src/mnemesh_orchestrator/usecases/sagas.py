"""Work on resources that have parts in several services: it is finished or undone, also after a crash or an outage."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Final, Generic, TypeVar

import structlog
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import DeadlineExceeded, Internal, MnemeshError, Unavailable
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.time import Clock

T = TypeVar("T")
R = TypeVar("R")

GRACE: Final = timedelta(seconds=60)
"""Younger work may still be in progress in another process."""

GIVE_UP: Final = timedelta(minutes=15)
"""Work that is older and ends with an internal error of a service is undone: that error does not go away."""

UNAVAILABLE: Final = (Unavailable, DeadlineExceeded, Internal)
"""Errors after which the same work can succeed later."""

_log = structlog.get_logger("mnemesh.reconciliation")


@dataclass(frozen=True, slots=True)
class WorkOrigin:
    """Where a piece of work comes from: its resource, its request, and its time."""

    resource_id: str
    organization_id: str
    subject_id: str
    started_at: datetime
    method: str | None = None
    request_id: str | None = None
    """The idempotency key of the request, which an undo deletes."""
    is_removal: bool = False
    """The work removes something: a deletion, or an undo that has begun. It is never undone."""

    @property
    def key(self) -> RequestKey | None:
        """The idempotency key, without the fingerprint of the content."""
        if self.method is None or self.request_id is None:
            return None
        return RequestKey(self.organization_id, self.method, self.request_id, "")


class Saga(ABC, Generic[T, R]):
    """One kind of work. `T` is the record of a piece of work, `R` its result.

    The record is stored before the first effect. Every effect can be repeated by any process, because its request id is
    derived from the record. If an effect is refused, the work is undone; if a service does not answer, it stays as it
    is, and reconciliation finishes it later.

        stored --take_effect--> finished
           |                       ^
           | refused               | reconcile, after an outage or a crash
           v                       |
        begin_undo --remove_effects--> gone
    """

    resource: ClassVar[str]
    deferring: ClassVar[tuple[type[MnemeshError], ...]] = UNAVAILABLE
    """The errors after which the work is finished later."""
    clock: Clock

    @abstractmethod
    def origin(self, work: T) -> WorkOrigin:
        """Returns where the work comes from."""

    @abstractmethod
    async def take_effect(self, work: T) -> R:
        """Carries out every effect of the work, and finishes it. Another process may do the same meanwhile."""

    @abstractmethod
    async def begin_undo(self, work: T, key: RequestKey | None) -> bool:
        """Marks the work as failed and deletes the key. Returns False if another process finished it."""

    @abstractmethod
    async def remove_effects(self, work: T) -> None:
        """Removes the effects of work whose undo has begun, and ends it."""

    def lock(self, work: T) -> AbstractAsyncContextManager[object]:  # noqa: ARG002
        """Returns the lock under which this process reconciles the work."""
        return nullcontext()

    async def run(self, work: T) -> R:
        """Carries out the work, or undoes it if an effect is refused. Raises the error of the effect."""
        try:
            return await self.take_effect(work)
        except self.deferring:
            raise
        except MnemeshError:
            await self.undo(work)
            raise

    async def undo(self, work: T) -> None:
        """Undoes the work, unless it removes or another process finished it. Reconciliation undoes the rest later."""
        origin = self.origin(work)
        if not origin.is_removal and await self.begin_undo(work, origin.key):
            with suppress(*UNAVAILABLE):
                await self.remove_effects(work)

    async def reconcile(self, work: T) -> None:
        """Finishes work that was found later, if it is old enough; undoes it if it cannot be finished."""
        origin, now = self.origin(work), self.clock.now()
        if not origin.is_removal and origin.started_at >= now - GRACE:
            return
        with as_principal(Principal(origin.organization_id, origin.subject_id)):
            async with self.lock(work):
                try:
                    await self.run(work)
                except Internal as error:
                    if origin.is_removal or origin.started_at > now - GIVE_UP:
                        raise
                    fields = {"resource": self.resource, "id": origin.resource_id, "error": error.message}
                    _log.error("work_undone", **fields)
                    await self.undo(work)


async def reconcile(
    resource: str,
    find: Callable[[], Awaitable[Sequence[T]]],
    finish: Callable[[T], Awaitable[object]],
    id_of: Callable[[T], str],
) -> None:
    """Finishes every item that is found. Items that cannot be finished now are logged and found again the next time.

    Args:
        resource: The kind of the items, for the log.
        find: Returns the items.
        finish: Finishes one item.
        id_of: Returns the id of an item, for the log.
    """
    try:
        items = await find()
    except MnemeshError as error:
        _log.warning("reconciliation_failed", resource=resource, error=error.message)
        return
    for item in items:
        try:
            await finish(item)
        except MnemeshError as error:
            _log.warning("reconciliation_deferred", resource=resource, id=id_of(item), error=error.message)
