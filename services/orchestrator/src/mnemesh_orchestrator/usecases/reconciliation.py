"""Finishes work that a crash, an unavailable service or a passed deadline left behind."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import structlog
from mnemesh_kit.errors import DeadlineExceeded, Internal, MnemeshError, Unavailable

T = TypeVar("T")

GRACE: Final = timedelta(seconds=60)
"""Younger work may still be in progress in another process."""

GIVE_UP: Final = timedelta(minutes=15)
"""A creation that is older and ends with an internal error of a service is undone: that error does not go away."""

UNAVAILABLE: Final = (Unavailable, DeadlineExceeded, Internal)
"""Errors after which the same work can succeed later."""

_log = structlog.get_logger("mnemesh.reconciliation")


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
