"""Going over what a crash, an absent tier or mere time left to be done."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog
from mnemesh_kit.errors import MnemeshError

T = TypeVar("T")

_log = structlog.get_logger("mnemesh.sweeping")


async def each(
    what: str,
    find: Callable[[], Awaitable[Sequence[T]]],
    work: Callable[[T], Awaitable[object]],
    id_of: Callable[[T], str],
) -> None:
    """Does the work for everything that is found. What cannot be done now is told, and left to the next time."""
    try:
        found = await find()
    except MnemeshError as error:
        _log.warning("looking for what is left failed", what=what, error=error.message)
        return
    for item in found:
        try:
            await work(item)
        except MnemeshError as error:
            _log.warning("it has to wait", what=what, id=id_of(item), error=error.message)
