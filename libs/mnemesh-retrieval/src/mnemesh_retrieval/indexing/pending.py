"""The changes that this process still has to apply, and those that it has applied but the index has not flushed."""

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

from mnemesh_kit.time import Clock

from mnemesh_retrieval.indexing.outbox import Change, ChangeKind, Claim, Outbox

CLAIM_DURATION: Final = timedelta(seconds=60)
"""The time after which another replica applies the changes of one that crashed; longer than any flush."""
UNAPPLIED_PAGE: Final = 1_000
CLAIM_MARGIN: Final = timedelta(seconds=10)
"""A replica begins no write this long before its claim expires."""


class PendingChanges:
    """Reads the outbox in order, without the changes that were applied.

    One process reads them behind a cursor, because applied changes stay in the outbox until they are flushed. A replica
    claims them.
    """

    def __init__(self, outbox: Outbox, clock: Clock, instance_id: str | None) -> None:
        self._outbox = outbox
        self._clock = clock
        self._instance_id = instance_id
        self._cursor = 0
        self._end: int | None = None
        """The value of the cursor after the last read that found the end of the outbox."""
        self._collections: AbstractSet[str] = frozenset()
        self._applied: dict[int, tuple[float, Change]] = {}
        self._renounced: dict[int, Change] = {}
        """Changes, by row id, that this replica has claimed and does not apply."""
        self._begun: set[int] = set()
        self.oldest: datetime | None = None
        """The time of the oldest known change that was not applied."""

    def claim(self) -> Claim | None:
        """Returns a new claim; None if this process is the only one."""
        return Claim(self._instance_id, self._clock.now() + CLAIM_DURATION) if self._instance_id is not None else None

    def expect_new(self) -> None:
        """Makes the next batch look for changes that were added since the last one."""
        self._end = None

    async def claim_batch(self, limit: int, collections: AbstractSet[str]) -> list[Change]:
        """Returns the oldest changes of these collections that were not applied; empty if there are none.

        See `expect_new` for changes that were added while the last batch was applied.
        """
        if self._instance_id is not None:
            return await self._claim(self._instance_id, limit, collections)
        if collections != self._collections:
            self._collections = collections
            self.rewind()
        while collections and self._cursor != self._end:
            cursor = self._cursor
            page = await self._outbox.read(cursor, limit, collections)
            if cursor != self._cursor:
                continue  # rewound meanwhile
            if not page:
                break
            self._cursor = page[-1].row_id
            if len(page) < limit:
                self._end = self._cursor
            if ready := [each for each in page if each.row_id not in self._applied and each.row_id not in self._begun]:
                self.oldest = ready[0].created_at
                return ready
        self.oldest = None
        return []

    async def note_waiting(self, collections: AbstractSet[str]) -> None:
        """Notes the age of the oldest change of collections whose changes wait."""
        if collections and (waiting := await self._outbox.read(0, 1, collections)):
            self.oldest = min(self.oldest or waiting[0].created_at, waiting[0].created_at)

    async def release(self, changes: Iterable[Change]) -> None:
        """Makes changes that were not applied available again, to this and other processes."""
        self._renounce(changes)
        await self._release_renounced()

    @asynccontextmanager
    async def applying(self, changes: Sequence[Change]) -> AsyncIterator[None]:
        """Keeps changes out of batches during the block. Those that were not applied in it are available after it."""
        ids = {change.row_id for change in changes}
        self._begun |= ids
        try:
            yield
        finally:
            self._begun -= ids
            self._renounce(changes)

    def rewind(self) -> None:
        """Makes the next batch begin with the oldest change."""
        self._cursor = 0

    def is_applied(self, change: Change) -> bool:
        """Returns whether this process has applied the change."""
        return change.row_id in self._applied

    async def list_unapplied(self, collection: str, limit: int) -> list[str]:
        """Returns the records whose changes this process has not applied: the newest, each once."""
        subjects: dict[str, None] = {}
        after = 0
        while page := await self._outbox.read(after, UNAPPLIED_PAGE, (collection,)):
            after = page[-1].row_id
            for change in page:
                if change.kind is ChangeKind.RECORD and not self.is_applied(change):
                    subjects.pop(change.subject_id, None)
                    subjects[change.subject_id] = None
        return list(subjects)[-limit:]

    def mark(self, changes: Iterable[Change]) -> None:
        """Notes that changes were applied just now."""
        now = time.monotonic()
        self._applied.update((change.row_id, (now, change)) for change in changes)

    def applied_before(self, moment: float) -> list[Change]:
        """Returns the applied changes that are still in the outbox, applied before a time of the monotonic clock."""
        return [change for at, change in self._applied.values() if at <= moment]

    def settled(self, changes: Sequence[Change]) -> None:
        """Notes that changes were deleted from the outbox."""
        for change in changes:
            self._applied.pop(change.row_id, None)
        # A change may have become visible behind the cursor, where commits are not in the order of row ids.
        self.rewind()

    def forget(self) -> None:
        """Notes that the index may have lost what was not flushed: all changes in the outbox are applied again."""
        lost = [change for _, change in self._applied.values()]
        self._applied.clear()
        self._renounce(lost)
        self.rewind()

    def _renounce(self, changes: Iterable[Change]) -> None:
        """Makes those of the changes that were not applied part of a later batch, before which their claims end."""
        waiting = [change for change in changes if change.row_id not in self._applied]
        if waiting:
            if self._instance_id is not None:
                self._renounced.update((change.row_id, change) for change in waiting)
            self.rewind()

    async def _release_renounced(self) -> None:
        released = tuple(self._renounced.values())
        if released and self._instance_id is not None:
            await self._outbox.release(released, self._instance_id)
            for change in released:
                self._renounced.pop(change.row_id, None)

    async def _claim(self, instance_id: str, limit: int, collections: AbstractSet[str]) -> list[Change]:
        await self._release_renounced()
        claimed = await self._outbox.claim(instance_id, CLAIM_DURATION, limit, collections) if collections else []
        known = claimed or await self._outbox.read(0, limit)
        self.oldest = next((change.created_at for change in known if change.row_id not in self._applied), None)
        return claimed
