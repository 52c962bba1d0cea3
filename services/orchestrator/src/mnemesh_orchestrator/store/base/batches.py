"""The stores of batches of runs, and of callbacks."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.batches import Batch, BatchDraft
from mnemesh_orchestrator.model.run_config import ClaimedCallback
from mnemesh_orchestrator.model.runs import Run


class BatchStore(Protocol):
    """Batches. The runs of a batch are those of a RunStore; a batch is deleted with the last of them."""

    async def find_repeated(self, key: RequestKey | None) -> Batch | None:
        """Returns the batch that `start` would return instead of storing another one. Raises RequestIdReused."""
        ...

    async def start(self, key: RequestKey | None, draft: BatchDraft, runs: Sequence[Run]) -> Batch:
        """Stores a batch with its runs at the ends of the queues of their conversations. Claims none.

        A repeat returns the first batch, and stores nothing.

        Raises:
            NotFound: An agent or a conversation does not exist.
            PendingApproval: A conversation waits for an approval.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def get(self, organization_id: str, batch_id: str) -> Batch:
        """Returns a batch. Raises NotFound."""
        ...

    async def list(self, organization_id: str, page: PageQuery) -> Page[Batch]:
        """Returns a page of batches ordered by creation."""
        ...

    async def mark_cancelled(self, organization_id: str, batch_id: str) -> bool:
        """Notes that the caller cancels a batch. Returns False, and changes nothing, if all its runs have ended.

        Raises NotFound.
        """
        ...


class CallbackStore(Protocol):
    """Callbacks of runs and batches. They are stored with their run or batch."""

    async def claim(self, limit: int) -> Sequence[ClaimedCallback]:
        """Returns callbacks of all organizations that are due and whose runs have ended, longest due first.

        Each is due again some time later unless `record` says that it is not.
        """
        ...

    async def record(
        self,
        organization_id: str,
        target_id: str,
        attempt: int,
        *,
        sent_at: datetime,
        status: int | None,
        error: str | None,
    ) -> None:
        """Stores the result of an attempt. Does nothing if it is not the newest one."""
        ...
