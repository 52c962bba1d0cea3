"""Waiting for events in bounded time."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Generator, Iterator
from importlib import import_module
from typing import Any, Final, Literal, cast

from mnemesh_client import Mnemesh
from mnemesh_client import sync as mnemesh_sync

VARIABLE: Final = "TESTKIT_TIMEOUT_FACTOR"
"""The environment variable that multiplies every time limit of a test."""
FACTOR: Final = float(os.environ.get(VARIABLE) or 1)


def scaled(seconds: float) -> float:
    """Returns a time limit for this machine. Limits end tests that hang; no test asserts how long something takes."""
    return seconds * FACTOR


def growing(first: float) -> Iterator[float]:
    """Yields longer and longer limits: for a test whose limit must end something that has begun, on any machine.

    Raises:
        AssertionError: A limit of a minute was too short.
    """
    limit = first
    while limit < scaled(60):
        yield limit
        limit *= 4
    raise AssertionError(f"nothing began within {limit / 4:g} seconds")


Face = Literal["async", "sync"]
FACES: Final[tuple[Face, ...]] = ("async", "sync")
_SYNC: Final = "mnemesh_client.sync"
_END: Final = object()


def with_face(client: Mnemesh, face: Face, **options: Any) -> Mnemesh:
    """Returns the client itself, or a synchronous one with its addresses whose methods can be awaited."""
    if face == "async":
        return client
    return cast("Mnemesh", Awaited(mnemesh_sync.Mnemesh(client.addresses, **options)))


class Awaited:
    """An object of the synchronous client. Each call waits in a thread, and returns what the asynchronous one does."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.ismethod(value):
            return _awaited(value)
        kind = type(self._inner)
        module = import_module(kind.__module__.replace(_SYNC, "mnemesh_client"))
        twin = inspect.getattr_static(getattr(module, kind.__name__), name)

        async def wait(*arguments: Any, **options: Any) -> Any:
            return _awaited(await asyncio.to_thread(value, *map(_inner, arguments), **options))

        def call(*arguments: Any, **options: Any) -> Any:
            return _awaited(value(*map(_inner, arguments), **options))

        return wait if inspect.iscoroutinefunction(twin) else call

    async def __aenter__(self) -> "Awaited":
        """Returns the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the client."""
        await asyncio.to_thread(self._inner.close)


class _Items:
    """An iterator whose items are awaited."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        item = await asyncio.to_thread(next, self._inner, _END)
        if item is _END:
            raise StopAsyncIteration
        return _awaited(item)

    async def aclose(self) -> None:
        if isinstance(self._inner, Generator):
            await asyncio.to_thread(self._inner.close)


def _awaited(value: Any) -> Any:
    if isinstance(value, Iterator):
        return _Items(value)
    if type(value) is list:
        return [_awaited(each) for each in value]
    return Awaited(value) if type(value).__module__.startswith(_SYNC) else value


def _inner(value: Any) -> Any:
    return value._inner if isinstance(value, Awaited) else value
