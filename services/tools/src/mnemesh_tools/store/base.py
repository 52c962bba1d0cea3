"""The contract of the tool store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_tools.model.tools import Tool, ToolFilter, ToolOrder, ToolSpec


class ToolStore(Protocol):
    """Definitions of tools, each in one organization; another's are as if they were not there.

    Every write is one transaction that also records its request key: the same key again changes nothing and gives the
    tool as it is now.
    """

    async def create(self, tool: Tool, key: RequestKey | None) -> Tool:
        """Stores a new tool.

        Raises:
            ToolNameTaken: the organization has a tool of that name.
        """
        ...

    async def upsert(
        self, tool: Tool, merge: Callable[[ToolSpec], ToolSpec], key: RequestKey | None
    ) -> tuple[Tool, bool]:
        """Stores `tool`, or changes the one with its name; the second value tells whether it was created.

        Args:
            tool: what to store where the name is free.
            merge: the new definition, given the one stored; pure, since it may run again.
            key: the request.
        """
        ...

    async def furnish(self, organization_id: str, release: str, builtins: Sequence[Tool]) -> None:
        """Stores the built-in tools of a release, once for each organization; later calls only read.

        One that is stored already gets its description and schema and keeps the rest; a name that a tool of another
        type has stays with it. All or nothing.
        """
        ...

    async def update(self, changed: Tool, merge: Callable[[ToolSpec], ToolSpec], key: RequestKey | None) -> Tool:
        """Replaces the definition of the tool with `changed.id` by `merge` of it; id and creation are kept.

        Raises:
            ToolNotFound: there is none.
            ToolNameTaken: the new definition has another tool's name.
        """
        ...

    async def delete(self, organization_id: str, tool_id: str, key: RequestKey | None) -> None:
        """Deletes a tool; one that is not there is a success."""
        ...

    async def get(self, organization_id: str, tool_id: str) -> Tool:
        """The tool with an id. Raises `ToolNotFound`."""
        ...

    async def get_by_name(self, organization_id: str, name: str) -> Tool:
        """The tool with a name. Raises `ToolNotFound`."""
        ...

    async def get_many(self, organization_id: str, ids: tuple[str, ...], names: tuple[str, ...]) -> tuple[Tool, ...]:
        """Those of `ids`, then those of `names`, in the order asked for, each once; unknown ones are left out."""
        ...

    async def list(self, organization_id: str, where: ToolFilter, order: ToolOrder, query: PageQuery) -> Page[Tool]:
        """One page, sorted by `order` and then by id."""
        ...

    async def count(self, organization_id: str, where: ToolFilter) -> int:
        """How many tools a list with this filter has."""
        ...

    async def purge_requests(self) -> int:
        """Forgets request keys that are past their time; returns how many."""
        ...
