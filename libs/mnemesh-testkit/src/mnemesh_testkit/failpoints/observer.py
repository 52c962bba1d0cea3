"""The points at which a room may die: between it and whatever keeps, does or tells something for it.

The fork server loads this into a room's process; the room itself knows nothing of it. Only what belongs to a call, or
to the run that a call has begun, has points: what a room does by itself, at times of its own, has none.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

DIED: Final = "died"
"""What stands behind the last point of a process that killed itself."""

_CALL: ContextVar[bool] = ContextVar("testkit_call", default=False)

_WORK: Final = {
    "archival": (("mnemesh_retrieval.edge", "EdgeIndex", ("write", "delete")),),
    "tools": (("mnemesh_tools.sandbox.sandbox", "Sandbox", ("run",)),),
}
"""What a room does outside of its database: module, class, and the methods that have an effect."""


class Points:
    """Writes down each point that is reached, and kills the process at the one that an order names.

    `<directory>/<name>.points` has a line for each; `<directory>/<name>.death` is the order: an id, how often the point
    is to be reached since, and the point's name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._trail = os.open(directory / f"{name}.points", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._order = directory / f"{name}.death"
        self._id = ""
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reached(self, point: str) -> None:
        """Tells of a point, at which the process may die."""
        if not _CALL.get():
            return
        with self._lock:
            os.write(self._trail, f"{point}\n".encode())
            try:
                order, times, fatal = self._order.read_text().split("\n")
            except FileNotFoundError:
                return
            if order != self._id:
                self._id, self._counts = order, Counter()
            self._counts[point] += 1
            if (point, self._counts[point]) == (fatal, int(times)):
                self._order.unlink()
                os.write(self._trail, DIED.encode() + b"\n")
                os.kill(os.getpid(), signal.SIGKILL)


def watch(directory: str, name: str) -> None:
    """Puts the points into the process of a room, which has yet to be assembled."""
    points, room = Points(Path(directory), name), name.partition("-")[0]
    _watch_transactions(points)
    _watch_outgoing_calls(points)
    _watch_servicers(points)
    if room == "orchestrator":
        _watch_models(points)
    for module, owner, methods in _WORK.get(room, ()):
        for method in methods:
            _watch_work(points, getattr(import_module(module), owner), method)


def _watch_transactions(points: Points) -> None:
    from mnemesh_kit.sql.database import Database  # noqa: PLC0415

    read, write = Database.read, Database.write

    async def watched_read(self: Database, fn: Callable[[Any], Any]) -> Any:
        points.reached(f"before reading by {_name(fn)}")
        return await read(self, fn)

    async def watched_write(self: Database, fn: Callable[[Any], Any]) -> Any:
        name = _name(fn)

        def whole(connection: Any) -> Any:
            result = fn(connection)
            points.reached(f"before the commit of {name}")
            return result

        points.reached(f"before the transaction of {name}")
        result = await write(self, whole)
        points.reached(f"after the commit of {name}")
        return result

    Database.read, Database.write = watched_read, watched_write  # type: ignore[method-assign]


def _watch_outgoing_calls(points: Points) -> None:
    from mnemesh_kit.channels import Channel  # noqa: PLC0415

    made = Channel.unary_unary

    def unary_unary(self: Channel, method: str, *args: Any, **kwargs: Any) -> Any:
        call, name = made(self, method, *args, **kwargs), method.rpartition("/")[2]

        async def watched(*args: Any, **kwargs: Any) -> Any:
            points.reached(f"before calling {name}")
            answer = await call(*args, **kwargs)
            points.reached(f"after calling {name}")
            return answer

        return watched

    Channel.unary_unary = unary_unary  # type: ignore[method-assign]


def _watch_servicers(points: Points) -> None:
    from mnemesh_kit.server import Assembly, RunningServer  # noqa: PLC0415

    start = RunningServer.start

    async def watched_start(self: RunningServer, assembly: Assembly, config: Any) -> str:
        servicers = [(add, _Servicer(servicer, points)) for add, servicer in assembly.servicers]
        return await start(self, replace(assembly, servicers=servicers), config)

    RunningServer.start = watched_start  # type: ignore[method-assign]


class _Servicer:
    """A servicer with a point when a call of it comes, and before each answer leaves."""

    def __init__(self, servicer: Any, points: Points) -> None:
        self._servicer = servicer
        self._points = points

    def __getattr__(self, name: str) -> Any:
        method, points = getattr(self._servicer, name), self._points

        async def single(answer: Awaitable[Any]) -> Any:
            _CALL.set(True)
            points.reached(f"when {name} comes")
            result = await answer
            points.reached(f"before the answer of {name} leaves")
            return result

        async def streaming(answers: AsyncIterator[Any]) -> AsyncIterator[Any]:
            _CALL.set(True)
            points.reached(f"when {name} comes")
            async for answer in answers:
                # How many pieces a text is streamed in is a matter of time.
                if answer.event.HasField("sequence"):
                    points.reached(f"before {answer.event.WhichOneof('event')} leaves")
                yield answer

        def call(request: Any, context: Any) -> Any:
            answer = method(request, context)
            return streaming(answer) if hasattr(answer, "__aiter__") else single(answer)

        return call


def _watch_models(points: Points) -> None:
    transport = import_module("httpx2").AsyncClient  # what the SDKs of providers send with
    send = transport.send

    async def watched(self: Any, request: Any, **kwargs: Any) -> Any:
        if request.method != "POST":  # what models a provider has is asked at any time
            return await send(self, request, **kwargs)
        points.reached("before asking the model")
        response = await send(self, request, **kwargs)
        points.reached("when the model begins to answer")
        return response

    transport.send = watched


def _watch_work(points: Points, owner: Any, method: str) -> None:
    inner = getattr(owner, method)

    @functools.wraps(inner)
    async def watched(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        name = f"{owner.__name__}.{method} of {getattr(first, 'function', first)}"
        points.reached(f"before {name}")
        result = await inner(self, first, *args, **kwargs)
        points.reached(f"after {name}")
        return result

    setattr(owner, method, watched)


def _name(fn: Any) -> str:
    """The store's method that a transaction belongs to."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(fn.__qualname__).partition(".<locals>")[0]
