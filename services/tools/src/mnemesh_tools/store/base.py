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

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_tools.model.tools import Tool, ToolFilter, ToolOrder

T = TypeVar("T")


class ToolTransaction(Protocol):
    """One transaction on the tools of one organization. Rows of other organizations are not visible in it.

    Names are unique within an organization. Callers check that a name is free before they write it.
    """

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

    def count_tools(self, filter_: ToolFilter) -> int:
        """Returns the number of tools that match the filter."""
        ...

    def insert_tool(self, tool: Tool) -> None:
        """Stores a new tool."""
        ...

    def update_tool(self, tool: Tool) -> None:
        """Overwrites the tool with the id of `tool`, which was read in this transaction."""
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
