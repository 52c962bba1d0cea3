"""Lines from stdin, read without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

_INPUT_FLAGS: Final = 0
_LOCAL_FLAGS: Final = 3


async def read_lines() -> AsyncGenerator[str, None]:
    """Yields the lines of stdin to its end. Reads a line only when the caller asks for it.

    The reading thread is a daemon, so that a read without an end does not keep the program alive.
    """
    loop = asyncio.get_running_loop()
    read = PipeReader(sys.stdin.fileno()).read_line
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
def typing_kept() -> Iterator[None]:
    """Within it, what a person types is not displayed, but kept for the next prompt. Ctrl-C still interrupts.

    It restores the terminal's settings on exit: an interrupted line editor leaves the terminal without echo.
    """
    if not sys.stdin.isatty():
        yield
        return
    before, settings = termios.tcgetattr(sys.stdin), termios.tcgetattr(sys.stdin)
    settings[_INPUT_FLAGS] &= ~termios.ICRNL
    settings[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def pastes_marked() -> Iterator[None]:
    """Within it, the terminal marks a pasted text, so that the next prompt takes it as one message."""
    if not sys.stdin.isatty() or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    _write("\x1b[?2004h")
    try:
        yield
    finally:
        _write("\x1b[?2004l")


def _write(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()


def _read_into(
    read: Callable[[], str | None], loop: asyncio.AbstractEventLoop, result: asyncio.Future[str | None]
) -> None:
    line = read()
    with suppress(RuntimeError):  # the loop may be closed by now
        loop.call_soon_threadsafe(_set_result, result, line)


def _set_result(result: asyncio.Future[Any], line: str | None) -> None:
    if not result.done():
        result.set_result(line)
