"""The uids that tools run under. Each is used by one execution at a time on the whole machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class NoUidLeft(Exception):
    """Other executions use every uid of the range."""


class UidPool:
    """Allocates uids of a range.

    An abstract socket with the name of the uid reserves it, so that servers on one machine never share a uid and the
    uids of a server that crashes become free.
    """

    def __init__(self, first: int, count: int) -> None:
        self._range = range(first, first + count)
        self._next = 0

    @contextmanager
    def claim(self) -> Iterator[int]:
        """Yields a uid that no other execution uses until the block ends.

        Raises:
            NoUidLeft: All are in use.
        """
        for offset in range(len(self._range)):
            uid = self._range[(self._next + offset) % len(self._range)]
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reservation:
                try:
                    reservation.bind(f"\0mnemesh-tools-uid-{uid}")
                except OSError:
                    continue
                self._next = (self._next + offset + 1) % len(self._range)
                yield uid
                return
        raise NoUidLeft(f"All {len(self._range)} uids from {self._range.start} are in use.")
