"""Checks of whole collections: records without a point are indexed, and points without a record are deleted.

A rebuild is a check of an empty collection. A check skips what agrees, so that it needs no stored progress: after a
crash it begins again and soon reaches the place where it was.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from mnemesh_retrieval.errors import CollectionMissing, IndexDamaged, RetrievalError
from mnemesh_retrieval.filters import EVERYTHING, HasId
from mnemesh_retrieval.index import CHECK_PAUSE, NearestIndex
from mnemesh_retrieval.indexing.collections import FAILURES, Collections, Tracked, WordRenewal
from mnemesh_retrieval.indexing.outbox import Change, Outbox
from mnemesh_retrieval.indexing.pending import PendingChanges

PAGE: Final = 500
"""The number of records that are compared together."""
COUNT_SECONDS: Final = 600.0
"""How often the numbers of records and points are compared. A difference starts a check."""
CHECK_SECONDS: Final = 86_400.0
"""How often a collection is checked and its checksums are verified, beside each start."""
LEASE_DURATION: Final = timedelta(seconds=120)
"""The time after which another replica checks in place of one that crashed."""
PROGRESS_SECONDS: Final = 30.0
"""How often the progress of a rebuild is logged."""

_log = structlog.get_logger("mnemesh.retrieval.indexer")


class CheckInterrupted(RetrievalError):
    """A check cannot continue now. It begins again later."""


class Walks:
    """Checks collections one after the other."""

    def __init__(
        self,
        index: NearestIndex,
        outbox: Outbox,
        collections: Collections,
        words: WordRenewal,
        pending: PendingChanges,
        apply: Callable[[Sequence[Change]], Awaitable[bool]],
        catch_up: Callable[[], Awaitable[int]],
        instance_id: str | None,
    ) -> None:
        self._index = index
        self._outbox = outbox
        self._collections = collections
        self._words = words
        self._pending = pending
        self._apply = apply
        self._catch_up = catch_up
        self._instance_id = instance_id
        self._counted_at: dict[str, float] = {}

    async def check_all(self, *, only_incomplete: bool = False) -> None:
        """Opens collections that could not be opened, and checks those that need it."""
        for tracked in self._collections.all():
            if only_incomplete and tracked.available and tracked.complete:
                continue
            if not tracked.available and time.monotonic() >= tracked.blocked_until:
                await self._collections.open_one(tracked)
            generation = self._collections.generation
            try:
                if tracked.is_ready(time.monotonic()) and await self._is_due(tracked):
                    await self._check(tracked)
            except CheckInterrupted as error:
                _log.info("vector_index_check_interrupted", collection=tracked.name, reason=str(error))
            except CollectionMissing as error:
                self._collections.lost(tracked, error)
            except IndexDamaged as error:
                await self._collections.replace_damaged(error, tracked.name, generation)
            except FAILURES as error:
                self._collections.failed(tracked, error)

    async def _is_due(self, tracked: Tracked) -> bool:
        now = time.monotonic()
        if tracked.checked_at is None or not tracked.complete or now - tracked.checked_at >= CHECK_SECONDS:
            return True
        if now - self._counted_at.get(tracked.key, tracked.checked_at) < COUNT_SECONDS:
            return False
        self._counted_at[tracked.key] = now
        await self._catch_up()
        points = await self._index.count(tracked.name, EVERYTHING)
        return await tracked.source.count() - points != tracked.without_point

    async def _check(self, tracked: Tracked) -> None:
        """Makes a collection complete, unless another replica does, or the index or an embedder fails meanwhile."""
        if not await self._holds(tracked):
            await self._await_other(tracked)
            return
        try:
            await self._check_held(tracked)
        finally:
            # Also when the process stops, so that another one need not wait for the lease to expire.
            with suppress(*FAILURES):
                await self._holds(tracked, timedelta(0))

    async def _check_held(self, tracked: Tracked) -> None:
        await self._index.verify(tracked.name)
        await self._catch_up()
        tracked.total, tracked.processed = await tracked.source.count(), 0
        indexed, without_point = await self._index_missing(tracked)
        deleted = await self._delete_extra(tracked)
        if not tracked.has_current_words:
            await self._renew_words(tracked)
        tracked.without_point = without_point
        tracked.checked_at = time.monotonic()
        tracked.complete = True
        if tracked.rebuilding or indexed or deleted:
            event = "vector_index_rebuild_finished" if tracked.rebuilding else "vector_index_repaired"
            _log.warning(event, collection=tracked.name, records_indexed=indexed, points_deleted=deleted)
        tracked.rebuilding = False

    async def _holds(self, tracked: Tracked, duration: timedelta = LEASE_DURATION) -> bool:
        return self._instance_id is None or await self._outbox.hold(tracked.key, self._instance_id, duration)

    async def _await_other(self, tracked: Tracked) -> None:
        """Notes the progress of the replica that checks the collection."""
        points = await self._index.count(tracked.name, EVERYTHING)
        tracked.total = await tracked.source.count()
        tracked.processed = min(points, tracked.total)
        tracked.has_current_words = await self._words.is_current(tracked.key, tracked.source)
        tracked.complete = points >= tracked.total and tracked.has_current_words

    async def _index_missing(self, tracked: Tracked) -> tuple[int, int]:
        """Returns how many records got a point, and how many have none because their texts have no vector."""
        indexed = without_point = 0
        position: str | None = None
        logged_at = time.monotonic()
        while page := await tracked.source.list_subjects(position, PAGE):
            began = time.monotonic()
            missing = await self._find_missing(tracked, [subject for _, subject in page])
            if missing:
                still = await self._add_points(tracked, missing)
                indexed += len(missing) - len(still)
                without_point += len(still)
            position = page[-1][0]
            tracked.processed += len(page)
            if tracked.rebuilding and began - logged_at >= PROGRESS_SECONDS:
                logged_at = began
                _log.info(
                    "vector_index_rebuild_progress",
                    collection=tracked.name,
                    processed=tracked.processed,
                    records=tracked.total,
                )
            await self._pause(tracked, began)
        return indexed, without_point

    async def _add_points(self, tracked: Tracked, missing: Sequence[str]) -> Sequence[str]:
        """Indexes records. Returns those that still have no point."""
        # The records of new changes have no points yet.
        await self._catch_up()
        missing = await self._find_missing(tracked, missing)
        if not missing:
            return ()
        changes = await self._outbox.add(tracked.key, missing, self._pending.claim())
        if not await self._apply(changes):
            tracked.complete = False
            raise CheckInterrupted(str(tracked.failure))
        still = await self._find_missing(tracked, missing)
        if len(still) < len(missing):
            tracked.complete = False
        return still

    async def _renew_words(self, tracked: Tracked) -> None:
        """Replaces the words of all points."""
        position: str | None = None
        while page := await tracked.source.list_subjects(position, PAGE):
            began = time.monotonic()
            changed = await self._words.renew(tracked.source, [subject for _, subject in page])
            if changed:
                changes = await self._outbox.add(tracked.key, changed, self._pending.claim())
                if not await self._apply(changes):
                    raise CheckInterrupted(str(tracked.failure))
            position = page[-1][0]
            await self._pause(tracked, began)
        await self._words.finish(tracked.key, tracked.source)
        tracked.has_current_words = True
        _log.warning("word_renewal_finished", collection=tracked.name)

    async def _delete_extra(self, tracked: Tracked) -> int:
        """Returns how many points without a record were deleted."""
        deleted = 0
        last: UUID | None = None
        while points := await self._index.scan(tracked.name, EVERYTHING, after=last, limit=PAGE):
            began = time.monotonic()
            existing = await tracked.source.find_existing(points)
            extra = [tracked.source.subject_of(point) for point in points if point not in existing]
            if extra:
                changes = await self._outbox.add(tracked.key, extra, self._pending.claim())
                if not await self._apply(changes):
                    raise CheckInterrupted(str(tracked.failure))
                deleted += len(extra)
            last = points[-1]
            await self._pause(tracked, began)
        return deleted

    async def _find_missing(self, tracked: Tracked, subjects: Sequence[str]) -> list[str]:
        """Returns the subjects without a point."""
        ids = {tracked.source.point_id(subject): subject for subject in subjects}
        found = await self._index.scan(tracked.name, HasId(tuple(ids)), limit=len(ids))
        present = set(found)
        return [subject for point, subject in ids.items() if point not in present]

    async def _pause(self, tracked: Tracked, began: float) -> None:
        """Leaves half of the time to others, and most of it if nothing is rebuilt. Keeps the right to check."""
        pause = 1.0 if tracked.rebuilding else CHECK_PAUSE
        await asyncio.sleep(pause * (time.monotonic() - began))
        if not await self._holds(tracked):
            raise CheckInterrupted("another replica has taken over the check")
