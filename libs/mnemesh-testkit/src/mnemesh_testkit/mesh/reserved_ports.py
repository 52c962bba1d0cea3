"""Loopback ports that stay reserved while nothing listens on them."""

from __future__ import annotations

import socket


class ReservedPort:
    """A free port that is bound without listening: no other process gets it, and a server can still bind it."""

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
        """Releases the port."""
        self._socket.close()
