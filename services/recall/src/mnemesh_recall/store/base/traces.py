"""The port of the store of turns and traces; the docstrings are its contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_recall.model.trace_operations import Export, Import, Imported, InteractionFilter, Record, TurnFilter
from mnemesh_recall.model.traces import ToolInteraction, Turn


class TraceStore(Protocol):
    """Turns, traces and tool interactions: views of the messages of all organizations.

    A message gets its turn in the transaction that stores it. The number of a turn is counted per agent, kept with it,
    and never given again, whatever is deleted; a turn whose last message was deleted is no more.
    """

    async def list_turns(self, organization_id: str, wanted: TurnFilter, page: PageQuery) -> Page[Turn]:
        """A page, by index, as one consistent read."""
        ...

    async def list_interactions(
        self, organization_id: str, wanted: InteractionFilter, page: PageQuery
    ) -> Page[ToolInteraction]:
        """A page, in the order in which the calls were stored. A repeated call id pairs with the next return of it."""
        ...

    def export(self, organization_id: str, wanted: Export) -> AsyncIterator[Sequence[Record]]:
        """All that is asked for, in batches: traces by turn and seq, episodes and facts by creation, snapshots.

        What is stored after the first batch was asked for is left out. Ids of memories that came from trace files are
        those of the files. NotFound: the agent was never written to, or has no such conversation.
        """
        ...

    async def import_records(self, organization_id: str, wanted: Import, key: RequestKey | None) -> Imported:
        """Stores what the agent does not have, all or none.

        Raises:
            AlreadyExists: the agent has a record of that id with other content, or another trace at that place of the
                turn (metadata: record_id).
            NotFound: the window that is to be extended, the conversation that is named, or the agent is another
                organization's.
            Erased: the agent was erased.
        """
        ...
