"""The Protocol of the store of turns and traces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_recall.model.trace_requests import (
    ImportResult,
    InteractionFilter,
    Record,
    TraceExport,
    TraceImport,
    TurnFilter,
)
from mnemesh_recall.model.traces import ToolInteraction, Turn


class TraceStore(Protocol):
    """The turns, traces and tool interactions of all organizations: views of their messages.

    A message gets its turn in the transaction that stores it. The index of a turn is counted per agent and is never
    used again. A turn whose last message was deleted no longer exists.

    Example:
        page = await store.list_turns(organization_id, TurnFilter(agent_id=agent_id, with_traces=True), page_query)
    """

    async def list_turns(self, organization_id: str, filter_: TurnFilter, page: PageQuery) -> Page[Turn]:
        """Returns a page, ordered by index, in one consistent read."""
        ...

    async def list_interactions(
        self, organization_id: str, filter_: InteractionFilter, page: PageQuery
    ) -> Page[ToolInteraction]:
        """Returns a page in the order in which the calls were stored.

        A call whose id repeats is paired with the next return that has this id.
        """
        ...

    def export(self, organization_id: str, export: TraceExport) -> AsyncIterator[Sequence[Record]]:
        """Yields the records in batches: traces by turn and seq, episodes and facts by creation time, snapshots.

        Rows that are stored after the first batch was requested are left out. A memory that was imported from a trace
        file has its id in that file.

        Raises:
            NotFound: the agent has no messages, or has no such conversation.
        """
        ...

    async def import_records(self, organization_id: str, request: TraceImport, key: RequestKey | None) -> ImportResult:
        """Stores the records that the agent does not have, all or none.

        A turn whose id belongs to another turn of the agent is renumbered, and so are the other new turns.

        Raises:
            AlreadyExists: the agent has a record with that id and other content, or two traces of the import have the
                same position of a turn (metadata: record_id).
            NotFound: the conversation does not exist, or the agent is another organization's.
            Erased: the agent was erased.
        """
        ...
