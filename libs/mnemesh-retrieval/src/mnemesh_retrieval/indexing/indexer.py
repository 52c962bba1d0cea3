"""The indexer: it applies the changes of the outbox to the index, and rebuilds collections that are gone or damaged."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import structlog
from mnemesh_kit.metrics import Gauge, Metric
from mnemesh_kit.time import Clock, SystemClock

from mnemesh_retrieval.errors import CollectionMissing, IndexDamaged, IndexUnavailable, VectorIndexError
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.indexing.collections import FAILURES, RETRY_SECONDS, Applier, Collections, Tracked, WordRenewal
from mnemesh_retrieval.indexing.outbox import Change, Claim, Outbox, Source
from mnemesh_retrieval.indexing.pending import CLAIM_DURATION, CLAIM_MARGIN, PendingChanges
from mnemesh_retrieval.indexing.walks import Walks

_log = structlog.get_logger("mnemesh.retrieval.indexer")


class History:
    """Names each state that the index has flushed, in the index and with the records."""

    def __init__(self, outbox: Outbox, index: NearestIndex) -> None:
        self._outbox = outbox
        self._index = index
        self._last: str | None = None

    async def is_shared(self) -> bool:
        """Returns false if the index is of another history than the records.

        Then a point may be of a state that its record never had, or no longer has.
        """
        self._last = await self._outbox.get_mark()
        if self._index.mark is None or self._last is None:
            return True
        try:
            names = await asyncio.to_thread(self._index.mark.names)
            if self._last in names or not await self._index.collections():
                return True
        except (OSError, VectorIndexError) as error:
            _log.warning("vector_index_mark_not_read", error=str(error))
            return True
        _log.error("vector_index_of_another_history", index=next(iter(names), None), records=self._last)
        return False

    async def adopt(self) -> None:
        """Gives the index the name of the records. All that it has is of their history."""
        if self._index.mark is not None and self._last is not None:
            try:
                await asyncio.to_thread(self._index.mark.store, self._last, None)
            except OSError as error:
                _log.warning("vector_index_mark_not_stored", error=str(error))

    async def settle(self, changes: Sequence[Change], instance_id: str | None) -> None:
        """Settles changes that the index has flushed. Raises VectorIndexError if the index cannot be named."""
        mark = self._index.mark
        if mark is None:
            await self._outbox.settle(changes, instance_id)
            return
        name = uuid.uuid4().hex
        try:
            await asyncio.to_thread(mark.store, name, self._last)
        except OSError as error:
            raise VectorIndexError(f"the mark of the index cannot be stored: {error}") from error
        await self._outbox.settle(changes, instance_id, name)
        self._last = name


def index_metrics(collections: Collections, rows: Callable[[], float], lag: Callable[[], float]) -> Sequence[Metric]:
    """Returns the metrics.

    Args:
        collections: the collections of the index.
        rows: returns the number of changes in the outbox.
        lag: returns the age of the oldest change that is not in the index, in seconds.
    """
    return (
        Gauge("mnemesh_index_outbox_rows", "Changes that the index has not flushed.", rows),
        Gauge("mnemesh_index_outbox_lag_seconds", "Age of the oldest change not in the index.", lag),
        Gauge(
            "mnemesh_index_rebuild_remaining_records",
            "Records that running rebuilds of the index have not reached.",
            collections.remaining,
        ),
        Gauge(
            "mnemesh_index_complete",
            "1 if the index has every record except those of the newest changes, else 0.",
            lambda: float(all(each.available and each.complete for each in collections.all())),
        ),
        collections.rebuilds,
    )


BATCH: Final = 256
"""The number of changes that are read together."""
POLL_SECONDS: Final = 2.0
"""The longest time that a change by another replica waits."""
BEHIND_SECONDS: Final = 1.0
"""The age of a change from which on the index counts as behind. Changes of writes that are under way are younger."""
GATHER_SECONDS: Final = 0.2
"""The delay after a notification, so that the changes of several writes are embedded together."""


class Indexer:
    """Keeps the collections of an index in agreement with records in SQL.

    Changes are applied in the background, or at once with `apply`. A change is deleted from the outbox only after the
    index has flushed its write to stable storage; until then it is repeated at the next start. Every application reads
    the current record, so that repeats and late ones are harmless.

    A collection that is missing, damaged, or built with another embedder is created empty and rebuilt from the records
    in the background. Meanwhile `is_complete` is false for it.

    If several replicas share one index and one database, each has its own `instance_id`, and a replica claims the
    changes that it applies. Without an `instance_id`, this process is the only one.

    Example:
        >>> indexer = Indexer(Outbox(database, index_tables, clock), index)
        >>> await indexer.register("messages", MessageSource(store, embedder))
        >>> await indexer.open()
        >>> running = asyncio.create_task(indexer.run())
    """

    def __init__(
        self,
        outbox: Outbox,
        index: NearestIndex,
        clock: Clock | None = None,
        *,
        instance_id: str | None = None,
        owned_prefixes: Sequence[str] = (),
        flush_seconds: float = 10.0,
    ) -> None:
        """Creates an indexer.

        Args:
            outbox: the changes.
            index: the index.
            clock: the clock.
            instance_id: the name of this replica, if several share the index.
            owned_prefixes: `open` drops collections with these prefixes that are not registered.
            flush_seconds: how often applied changes are flushed and deleted from the outbox.
        """
        self._outbox = outbox
        self._index = index
        self._clock = clock or SystemClock()
        self._instance_id = instance_id
        self._flush_seconds = flush_seconds
        self._applier = Applier(index)
        words = WordRenewal(outbox, index, self._applier.busy)
        self._pending = PendingChanges(outbox, self._clock, instance_id)
        self._collections = Collections(index, words, owned_prefixes, self._pending.forget)
        self._walks = Walks(
            index, outbox, self._collections, words, self._pending, self.apply, self.catch_up, instance_id
        )
        self._history = History(outbox, index)
        self._notified = asyncio.Event()
        self._catching_up = asyncio.Lock()
        self._flushing = asyncio.Lock()
        self._rows = 0

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of the outbox and the index."""
        return index_metrics(self._collections, lambda: self._rows, self.lag_seconds)

    async def register(self, key: str, source: Source) -> None:
        """Registers a collection under the key that its changes have. After `open`, it is opened at once."""
        await self._collections.register(key, source)
        self._pending.rewind()

    async def open(self) -> None:
        """Opens the registered collections. A missing or damaged one is created empty, and rebuilt by `run`."""
        await self._collections.open(is_shared=await self._history.is_shared())
        await self._history.adopt()

    def is_complete(self, key: str) -> bool:
        """Returns whether the index has every record of a collection, except those of the newest changes."""
        tracked = self._collections.get(key)
        return tracked is not None and tracked.available and tracked.complete

    def is_behind(self, key: str) -> bool:
        """Returns whether changes of a collection may wait for the index, an embedder, or their turn."""
        tracked = self._collections.get(key)
        # The outbox does not tell a replica which changes another one has applied, until they are flushed.
        expected = BEHIND_SECONDS if self._instance_id is None else BEHIND_SECONDS + 2 * self._flush_seconds
        return (tracked is not None and tracked.failure is not None) or self.lag_seconds() > expected

    async def list_unapplied(self, key: str, limit: int) -> list[str]:
        """Returns the records whose changes this process has not applied to a collection: the newest, each once."""
        return await self._pending.list_unapplied(key, limit)

    def failures(self) -> dict[str, Exception]:
        """Returns the last error of each collection whose changes wait, by its name in the index."""
        return {each.name: each.failure for each in self._collections.all() if each.failure is not None}

    def lag_seconds(self) -> float:
        """Returns the age of the oldest known change that is not in the index; 0 if there is none."""
        oldest = self._pending.oldest
        return 0.0 if oldest is None else max(0.0, (self._clock.now() - oldest).total_seconds())

    def claim(self) -> Claim | None:
        """Returns the claim for changes that this process applies at once; None if it is the only process."""
        return self._pending.claim()

    def notify(self) -> None:
        """Wakes the indexer, because the outbox has new changes."""
        self._notified.set()

    async def apply(self, changes: Sequence[Change]) -> bool:
        """Applies changes at once, so that later searches see them.

        Returns:
            Whether all were applied. The others are applied in the background once index and embedder are available.
        """
        async with self._pending.applying(changes):
            await self._apply(changes)
        if all(map(self._pending.is_applied, changes)):
            return True
        with suppress(*FAILURES):
            await self._pending.release(changes)
        return False

    async def report_damage(self, collection: str, error: IndexDamaged) -> None:
        """Has a collection verified soon, because a search found it damaged; a damaged one is replaced and rebuilt."""
        self._collections.suspect(collection, error)

    async def run(self) -> None:
        """Applies changes, flushes, checks and rebuilds until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._apply_regularly())
            tasks.create_task(self._flush_regularly())
            tasks.create_task(self._check_regularly())

    async def catch_up(self) -> int:
        """Applies all changes that can be applied now and that no other replica has claimed. Returns their number."""
        applied = 0
        async with self._catching_up:
            self._pending.expect_new()
            while changes := await self._pending.claim_batch(BATCH, self._collections.ready()):
                try:
                    await self._apply(changes)
                except BaseException:
                    self._pending.rewind()
                    raise
                done = sum(map(self._pending.is_applied, changes))
                applied += done
                if done < len(changes):
                    await self._pending.release(changes)
            await self._pending.note_waiting(self._collections.waiting())
        return applied

    def retry(self) -> None:
        """Ends the waits after failures of the index or an embedder."""
        self._collections.retry()

    async def check(self) -> None:
        """Compares all collections with their records, and repairs what differs."""
        await self._walks.check_all()

    async def flush(self) -> None:
        """Flushes the index, and deletes the changes that are on its stable storage from the outbox."""
        async with self._flushing:
            changes = self._pending.applied_before(time.monotonic() - self._index.durable_after_seconds)
            if changes:
                await self._flush_index()
                await self._history.settle(changes, self._instance_id)
                self._pending.settled(changes)
            self._rows = await self._outbox.count()

    async def drain(self) -> int:
        """Checks all collections, and waits until the outbox is empty. Returns the number of changes applied here.

        Raises:
            RetrievalError: a collection waits for the index or its embedder.
        """
        await self.check()
        applied = 0
        while True:
            applied += await self.catch_up()
            await self.flush()
            if not self._rows:
                return applied
            self._collections.require_ready()
            await asyncio.sleep(GATHER_SECONDS)

    async def close(self) -> None:
        """Flushes what was applied."""
        with suppress(*FAILURES):
            await self.flush()

    async def _flush_index(self) -> None:
        try:
            await self._index.flush()
        except IndexDamaged as error:
            for tracked in self._collections.all():
                self._collections.suspect(tracked.name, error)
            raise

    async def _apply(self, changes: Sequence[Change]) -> None:
        """Applies changes of ready collections and marks them. A failure makes the changes of its collection wait."""
        deadline = self._clock.now() + CLAIM_DURATION - CLAIM_MARGIN if self._instance_id is not None else None
        for key in dict.fromkeys(change.collection for change in changes):
            tracked = self._collections.get(key)
            if tracked is not None and tracked.is_ready(time.monotonic()):
                await self._apply_to(tracked, [change for change in changes if change.collection == key], deadline)

    async def _apply_to(self, tracked: Tracked, changes: Sequence[Change], deadline: datetime | None) -> None:
        def is_in_time() -> bool:
            return deadline is None or self._clock.now() < deadline

        generation = self._collections.generation
        try:
            applied = await self._applier.apply(tracked.source, changes, self._pending.is_applied, is_in_time)
        except IndexDamaged as error:
            await self._collections.replace_damaged(error, tracked.name, generation)
        except CollectionMissing as error:
            self._collections.lost(tracked, error)
        except FAILURES as error:
            self._collections.failed(tracked, error)
            if isinstance(error, IndexUnavailable):
                # A server that went away may have lost what it had not flushed.
                self._pending.forget()
        else:
            if generation == self._collections.generation:
                self._pending.mark(applied)
                self._collections.succeeded(tracked)

    async def _apply_regularly(self) -> None:
        while True:
            wait = POLL_SECONDS if await self._attempt(self.catch_up) else RETRY_SECONDS
            with suppress(TimeoutError):
                # asyncio.wait_for loses a cancellation that arrives together with the event.
                async with asyncio.timeout(wait):
                    await self._notified.wait()
                await asyncio.sleep(GATHER_SECONDS)
            self._notified.clear()

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._flush_seconds)
            await self._attempt(self.flush)

    async def _check_regularly(self) -> None:
        # A start has other work; what seems complete is checked a little later.
        await self._attempt(lambda: self._walks.check_all(only_incomplete=True))
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            await self._attempt(self.check)

    async def _attempt(self, act: Callable[[], Awaitable[object]]) -> bool:
        """Returns whether the work succeeded. The database or the index may be away for a while: it is tried again."""
        try:
            await act()
        except FAILURES as error:
            _log.warning("vector_index_update_failed", error=str(error), retry_in=RETRY_SECONDS)
        except Exception:
            _log.exception("vector_index_update_failed", retry_in=RETRY_SECONDS)
        else:
            return True
        return False
