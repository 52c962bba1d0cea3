"""Connections of commands to meshes in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mnemesh_client import Mnemesh


class Opened:
    """The connection of a command, to a mesh in this process."""

    as_json = False

    def __init__(self, client: Mnemesh) -> None:
        self._client = client

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mnemesh]:
        """Yields the client of the mesh, which stays open."""
        yield self._client
