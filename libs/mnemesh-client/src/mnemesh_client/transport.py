"""What the asynchronous client does differently from the synchronous one, whose twin is `sync_transport`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from typing import Any, Final, ParamSpec, TypeVar, cast

from mnemesh_kit.channels import Channel, Channels

__all__ = ["Channel", "Channels", "closing", "in_thread", "sleep"]

P = ParamSpec("P")
T = TypeVar("T")

sleep: Final = asyncio.sleep


def closing(stream: AsyncIterable[T]) -> aclosing[AsyncGenerator[T, None]]:
    """Returns a context manager with the items of a stream. It ends the call when the block is left."""
    return aclosing(cast("AsyncGenerator[Any, None]", aiter(stream)))


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs what waits for a disk, without holding up the loop."""
    return await asyncio.to_thread(function, *args, **kwargs)
