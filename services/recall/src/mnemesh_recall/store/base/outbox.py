"""The Protocol of the outbox, from which the vector index is updated."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from mnemesh_recall.model.outbox import OutboxRow, PendingChanges


class OutboxStore(Protocol):
    """The pending changes of the vector index, of all organizations, oldest first.

    A change is written in the transaction of the write that causes it. If several instances share one index, only the
    instance with the lease applies changes.

    Example:
        changes = await outbox.get_pending(256)
        ...  # bring them into the index
        await outbox.settle(changes.rows)
    """

    async def get_pending(self, limit: int) -> PendingChanges:
        """Returns the oldest changes, with the searchable messages that they name."""
        ...

    async def enqueue_all_messages(self) -> int:
        """Adds a change for every searchable message. Returns their number."""
        ...

    async def acquire_lease(self, instance_id: str, duration: timedelta) -> bool:
        """Takes or renews the lease. Returns false if another instance has it."""
        ...

    async def release_lease(self, instance_id: str) -> None:
        """Gives up the lease if this instance still has it."""
        ...

    async def settle(self, rows: Sequence[OutboxRow], instance_id: str | None = None) -> bool:
        """Deletes changes that the index contains.

        With an `instance_id`, they are deleted only while that instance has the lease. Otherwise another instance may
        have been faster, and this one may have overwritten newer vectors: the changes are added again.

        Returns:
            Whether the changes were deleted.
        """
        ...
