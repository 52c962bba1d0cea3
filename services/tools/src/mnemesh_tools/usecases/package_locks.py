"""Where the lock of packages is kept: with a tool, or with an MCP server. Every replica installs the same versions."""

from __future__ import annotations

from typing import Protocol

from mnemesh_tools.model.requirements import PackageSet
from mnemesh_tools.model.tools import Tool
from mnemesh_tools.store.base import ToolStore


class PackageLock(Protocol):
    """The lock of one set of packages."""

    async def read(self) -> str | None:
        """Returns the lock, or None before the packages are resolved."""
        ...

    async def add(self, lock: str) -> str:
        """Stores a lock, and returns it; or the one that was stored meanwhile."""
        ...


class ToolPackageLock:
    """The lock of the packages of a stored tool."""

    def __init__(self, store: ToolStore, tool: Tool) -> None:
        self._store = store
        self._tool = tool

    async def read(self) -> str | None:
        """See `PackageLock.read`."""
        return self._tool.package_lock

    async def add(self, lock: str) -> str:
        """See `PackageLock.add`."""
        tool = self._tool
        return await self._store.write(tool.organization_id, lambda tx: tx.add_package_lock(tool.id, tool.spec, lock))


class ServerPackageLock:
    """The lock of the packages of a stored MCP server."""

    def __init__(self, store: ToolStore, organization_id: str, server_id: str, packages: PackageSet) -> None:
        self._store = store
        self._organization_id = organization_id
        self._server_id = server_id
        self._packages = packages

    async def read(self) -> str | None:
        """See `PackageLock.read`."""
        return await self._store.read(
            self._organization_id, lambda tx: tx.mcp.get_package_lock(self._server_id, self._packages)
        )

    async def add(self, lock: str) -> str:
        """See `PackageLock.add`."""
        return await self._store.write(
            self._organization_id, lambda tx: tx.mcp.add_package_lock(self._server_id, self._packages, lock)
        )
