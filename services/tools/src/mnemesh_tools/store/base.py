"""The contract of tool stores: `ToolStore` runs units of work, and `ToolTransaction` is what each works on.

Example:
    ```python
    def rename(tx: ToolTransaction) -> None:
        tool = tx.get_tool_by_name("roll")
        if tool is not None:
            tx.update_tool(replace(tool, spec=replace(tool.spec, name="toss"), revision=tool.revision + 1))

    await store.write(organization_id, rename)
    ```
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_tools.model.mcp_servers import McpAuthorization, McpServer, McpServerFilter, McpServerOrder
from mnemesh_tools.model.mcp_tools import McpRun, McpTool, McpToolOrder, SchemaStatus
from mnemesh_tools.model.packages import PackageSet
from mnemesh_tools.model.tools import Tool, ToolFilter, ToolOrder, ToolSpec

T = TypeVar("T")


class McpTransaction(Protocol):
    """One transaction on the MCP servers of one organization, and on the tools that they report."""

    def get_server(self, server_id: str) -> McpServer | None:
        """Returns the server with this id, or None."""
        ...

    def get_server_by_name(self, name: str) -> McpServer | None:
        """Returns the server with this name, or None."""
        ...

    def list_servers(self, filter_: McpServerFilter, order: McpServerOrder, page: PageQuery) -> Page[McpServer]:
        """Returns a page of the servers that match the filter, sorted by `order` and then by id."""
        ...

    def insert_server(self, server: McpServer) -> None:
        """Stores a new server."""
        ...

    def update_server(self, server: McpServer) -> None:
        """Overwrites the server with the id of `server`, which was read in this transaction."""
        ...

    def delete_server(self, server_id: str) -> None:
        """Deletes a server and what it reported; the definitions that agents attach are not touched."""
        ...

    def get_tool(self, server_id: str, *, tool_id: str | None = None, name: str | None = None) -> McpTool | None:
        """Returns the tool of a server with this id or this name, or None."""
        ...

    def get_tools(self, server_id: str) -> Sequence[McpTool]:
        """Returns all tools of a server, by name."""
        ...

    def list_tools(
        self, server_id: str, statuses: Sequence[SchemaStatus], order: McpToolOrder, page: PageQuery
    ) -> Page[McpTool]:
        """Returns a page of a server's tools; without statuses, all of them."""
        ...

    def put_tool(self, tool: McpTool) -> None:
        """Stores a tool, or overwrites the one with its id."""
        ...

    def delete_tools(self, tool_ids: Sequence[str]) -> None:
        """Deletes tools."""
        ...

    def get_package_lock(self, server_id: str, packages: PackageSet) -> str | None:
        """Returns the lock of these packages that is stored with a server, or None."""
        ...

    def add_package_lock(self, server_id: str, packages: PackageSet, lock: str) -> str:
        """Stores a lock with a server that has none for these packages. It replaces that of other requirements.

        Returns:
            The lock of these packages: one that was stored before, or this one.
        """
        ...

    def get_authorization(self, server_id: str) -> McpAuthorization | None:
        """Returns the last authorization of a server that has begun, or None."""
        ...

    def put_authorization(self, authorization: McpAuthorization, most: int) -> None:
        """Stores an authorization that begins, instead of that of its server.

        The organization keeps its newest `most`; older ones are deleted.
        """
        ...

    def update_authorization(self, authorization: McpAuthorization) -> None:
        """Overwrites an authorization. Does nothing if another one of its server has begun."""
        ...

    def begin_run(self, key: RequestKey, at: datetime) -> McpRun | None:
        """Records the beginning of a run, unless the request has begun one before; returns that one.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """
        ...

    def end_run(self, key: RequestKey, result: bytes) -> None:
        """Records the result of a run that has begun."""
        ...

    def forget_run(self, key: RequestKey) -> None:
        """Deletes the record of a run that had no effect."""
        ...


class ToolTransaction(Protocol):
    """One transaction on the tools of one organization. Rows of other organizations are not visible in it.

    Names are unique within an organization. Callers check that a name is free before they write it.
    """

    @property
    def mcp(self) -> McpTransaction:
        """The MCP servers of the organization, in the same transaction."""
        ...

    def get_tool(self, tool_id: str) -> Tool | None:
        """Returns the tool with this id, or None."""
        ...

    def get_tool_by_name(self, name: str) -> Tool | None:
        """Returns the tool with this name, or None."""
        ...

    def get_tools(self, ids: Sequence[str], names: Sequence[str]) -> Sequence[Tool]:
        """Returns the tools with these ids, then those with these names, each once; unknown ones are left out."""
        ...

    def list_tools(self, filter_: ToolFilter, order: ToolOrder, page: PageQuery) -> Page[Tool]:
        """Returns a page of the tools that match the filter, sorted by `order` and then by id."""
        ...

    def find_tools(self, filter_: ToolFilter, order: ToolOrder) -> Sequence[Tool]:
        """Returns all tools that match the filter, in descending order."""
        ...

    def count_tools(self, filter_: ToolFilter) -> int:
        """Returns the number of tools that match the filter."""
        ...

    def insert_tool(self, tool: Tool) -> None:
        """Stores a new tool."""
        ...

    def update_tool(self, tool: Tool) -> None:
        """Overwrites the tool with the id of `tool`, which was read in this transaction."""
        ...

    def add_package_lock(self, tool_id: str, spec: ToolSpec, lock: str) -> str:
        """Stores the lock of a tool that still has these requirements and no lock. The tool keeps its revision.

        Returns:
            The lock of these requirements: one that was stored before, or this one.
        """
        ...

    def delete_tool(self, tool_id: str) -> bool:
        """Deletes a tool; returns False if there is none."""
        ...

    def get_builtin_release(self) -> str | None:
        """Returns the release whose built-in tools the organization has, or None before the first."""
        ...

    def set_builtin_release(self, release: str) -> None:
        """Records the release whose built-in tools the organization has."""
        ...


class ToolStore(Protocol):
    """A transactional store of tools.

    Transactions are serializable: everything that a unit of work has read is still true when it commits. The store
    repeats a unit of work that conflicts with another one, so the work must have no effect outside its transaction.
    """

    async def read(self, organization_id: str, work: Callable[[ToolTransaction], T]) -> T:
        """Runs `work` on one consistent snapshot and returns its result."""
        ...

    async def write(self, organization_id: str, work: Callable[[ToolTransaction], T]) -> T:
        """Runs `work` in a transaction and returns its result. An exception rolls the transaction back."""
        ...

    async def write_once(
        self,
        organization_id: str,
        key: RequestKey | None,
        work: Callable[[ToolTransaction], T],
        *,
        result_ids: Callable[[T], Sequence[str]],
        replay: Callable[[ToolTransaction, Sequence[str]], T],
    ) -> T:
        """Runs `work` like `write`, unless the request has taken effect before.

        Args:
            organization_id: The organization of the tools.
            key: The idempotency key of the request; None always runs `work`.
            work: The effect, which returns the result of the request.
            result_ids: Returns the strings to record for a result.
            replay: Returns the result of a repeated request from the recorded strings.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """
        ...

    async def recorded(self, key: RequestKey | None) -> Sequence[str] | None:
        """Returns the recorded strings of a request that has taken effect; None for another one.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """
        ...

    async def find_mcp_authorization(self, state_hash: str) -> McpAuthorization | None:
        """Returns the authorization of any organization with this hash of its state, or None."""
        ...

    async def existing_mcp_servers(self, ids: Collection[str]) -> Collection[str]:
        """Returns those of these ids that belong to MCP servers, of any organization."""
        ...
