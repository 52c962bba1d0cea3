"""Lines from stdin, read without blocking the event loop."""

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


async def read_lines(prompt: str) -> AsyncGenerator[str, None]:
    """Yields the lines of stdin to its end. Reads a line only when the caller asks for it.

    On a terminal, the line can be edited and has a history. The reading thread is a daemon, so that an unanswered
    prompt does not keep the program alive.
    """
    loop = asyncio.get_running_loop()
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    read = partial(_read_edited, prompt) if is_terminal else PipeReader(sys.stdin.fileno()).read_line
    while True:
        result: asyncio.Future[str | None] = loop.create_future()
        threading.Thread(target=_read_into, args=(read, loop, result), daemon=True).start()
        line = await result
        if line is None:
            return
        yield line


class PipeReader:
    """The lines of a file descriptor.

    It bypasses the buffer of `sys.stdin`: the interpreter aborts at exit if a daemon thread holds that buffer's lock.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._ended = False

    def read_line(self) -> str | None:
        """Returns the next line without its line break, or None after the last line."""
        while b"\n" not in self._buffer and not self._ended:
            piece = os.read(self._descriptor, 65536)
            self._buffer += piece
            self._ended = not piece
        line, separator, self._buffer = self._buffer.partition(b"\n")
        if not line and not separator:
            return None
        return line.removesuffix(b"\r").decode(errors="replace")


@contextmanager
def terminal_restored() -> Iterator[None]:
    """Restores the terminal's settings on exit: an interrupted line editor leaves the terminal without echo."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _read_edited(prompt: str) -> str | None:
    if "readline" not in sys.modules and os.environ.get("TERM") != "dumb":
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415  (adds arrow keys and a history to `input`)
    try:
        return input(prompt)
    except EOFError:
        return None


def _read_into(
    read: Callable[[], str | None], loop: asyncio.AbstractEventLoop, result: asyncio.Future[str | None]
) -> None:
    line = read()
    with suppress(RuntimeError):  # the loop may be closed by now
        loop.call_soon_threadsafe(_set_result, result, line)


def _set_result(result: asyncio.Future[Any], line: str | None) -> None:
    if not result.done():
        result.set_result(line)
