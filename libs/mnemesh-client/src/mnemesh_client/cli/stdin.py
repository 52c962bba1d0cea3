"""Reads a person's lines without holding up the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any


async def lines(prompt: str) -> AsyncGenerator[str, None]:
    """Yields the lines of stdin to its end, each read only when it is asked for.

    On a terminal the line can be edited and has a history. The reading thread is a daemon: a prompt that nobody
    answers does not keep the program alive.
    """
    loop = asyncio.get_running_loop()
    read = partial(_edited, prompt) if sys.stdin.isatty() and sys.stdout.isatty() else Piped(sys.stdin.fileno()).line
    while True:
        answer: asyncio.Future[str | None] = loop.create_future()
        threading.Thread(target=_read, args=(read, loop, answer), daemon=True).start()
        line = await answer
        if line is None:
            return
        yield line


class Piped:
    """The lines of a file descriptor, past Python's own buffer: a thread that waits in there would be fatal at exit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._ended = False

    def line(self) -> str | None:
        """The next line without its end, or None after the last."""
        while b"\n" not in self._buffer and not self._ended:
            piece = os.read(self._descriptor, 65536)
            self._buffer += piece
            self._ended = not piece
        line, separator, self._buffer = self._buffer.partition(b"\n")
        if not line and not separator:
            return None
        return line.removesuffix(b"\r").decode(errors="replace")


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Gives the terminal back as it was: a line editor that is left in mid-line would leave it without echo."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _edited(prompt: str) -> str | None:
    if "readline" not in sys.modules and os.environ.get("TERM") != "dumb":
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415  (gives `input` arrow keys and a history)
    try:
        return input(prompt)
    except EOFError:
        return None


def _read(read: Callable[[], str | None], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[str | None]) -> None:
    line = read()
    with suppress(RuntimeError):  # the loop may have closed while nobody typed
        loop.call_soon_threadsafe(_settle, answer, line)


def _settle(answer: asyncio.Future[Any], line: str | None) -> None:
    if not answer.done():
        answer.set_result(line)
