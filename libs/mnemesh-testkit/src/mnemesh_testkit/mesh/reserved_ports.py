"""Loopback ports that stay a test's own, also while nothing listens on them."""

from __future__ import annotations

import socket


class ReservedPort:
    """A free port, bound here without listening: the kernel gives it to nobody else, and a server may still bind it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.number}"

    def release(self) -> None:
        """Gives the port back."""
        self._socket.close()
