"""Running an action for many items, several at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from mnemesh_kit.errors import MnemeshError

T = TypeVar("T")


async def for_each(items: Iterable[T], parallel: int, action: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Runs an action for each item, at most `parallel` at a time.

    Raises:
        MnemeshError: the first error of an action. It ends the others.
    """
    waiting = deque(items)

    async def work() -> None:
        while waiting:
            await action(waiting.popleft())

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(parallel, len(waiting))):
                workers.create_task(work())
    except* MnemeshError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
