"""What the synchronous client does differently from the asynchronous one, whose twin is `transport`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, ParamSpec, TypeVar, cast

from mnemesh_client.sync_channels import Channel, Channels

__all__ = ["Channel", "Channels", "closing", "in_thread", "sleep"]

P = ParamSpec("P")
T = TypeVar("T")

sleep: Final = time.sleep


def closing(stream: Iterable[T]) -> contextlib.closing[Generator[T, None, None]]:
    """Returns a context manager with the items of a stream. It ends the call when the block is left."""
    return contextlib.closing(cast("Generator[Any, None, None]", iter(stream)))


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs what waits for a disk, in the thread of the caller."""
    return function(*args, **kwargs)
