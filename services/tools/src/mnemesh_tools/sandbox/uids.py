"""The uids that tools run under: each is held by one execution at a time, on the whole machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class NoUidLeft(Exception):
    """Other executions hold every uid of the range."""


class UidPool:
    """Hands out uids of a range.

    A uid is claimed by an abstract socket of its name, so that servers on one machine never share one and a server
    that dies gives its uids back.
    """

    def __init__(self, first: int, count: int) -> None:
        self._range = range(first, first + count)
        self._next = 0

    @contextmanager
    def claim(self) -> Iterator[int]:
        """A uid that nobody else uses until the block ends.

        Raises:
            NoUidLeft: all are in use.
        """
        for offset in range(len(self._range)):
            uid = self._range[(self._next + offset) % len(self._range)]
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
                try:
                    held.bind(f"\0mnemesh-tools-uid-{uid}")
                except OSError:
                    continue
                self._next = (self._next + offset + 1) % len(self._range)
                yield uid
                return
        raise NoUidLeft(f"All {len(self._range)} uids from {self._range.start} on are in use.")
