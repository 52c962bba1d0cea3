"""The collections of an index, and how changes of records are applied to them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.metrics import Counter

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import (
    CollectionMismatch,
    CollectionMissing,
    EmbedderRejected,
    IndexDamaged,
    PointInvalid,
    RetrievalError,
)
from mnemesh_retrieval.filters import EVERYTHING
from mnemesh_retrieval.index import NearestIndex, Point, VectorIndex, WriteMode
from mnemesh_retrieval.indexing.outbox import Change, ChangeKind, Outbox, Record, Source


class Busy:
    """The subjects that tasks of this process are writing."""

    def __init__(self) -> None:
        self._held: dict[Hashable, asyncio.Event] = {}

    @asynccontextmanager
    async def holding(self, subjects: Iterable[Hashable]) -> AsyncIterator[None]:
        """Waits until no other task holds any of the subjects, and holds all of them during the block."""
        wanted = set(subjects)
        while released := next((self._held[subject] for subject in wanted if subject in self._held), None):
            await released.wait()
        released = asyncio.Event()
        self._held.update(dict.fromkeys(wanted, released))
        try:
            yield
        finally:
            for subject in wanted:
                del self._held[subject]
            released.set()

    async def others(self) -> None:
        """Waits until the tasks that hold subjects now have released them."""
        for released in set(self._held.values()):
            await released.wait()


_PLAIN_WORD: Final = "word"
EMBED_BATCH: Final = 128
"""The records that are read, embedded and written together: one request of an embedder over HTTP.

A write to an embedded index holds the interpreter lock, about 0.1 ms for each record: larger batches would delay calls.
"""

_log = structlog.get_logger("mnemesh.retrieval.indexer")


class Applier:
    """Applies changes of one collection at a time. Every application is idempotent."""

    def __init__(self, index: NearestIndex) -> None:
        self._index = index
        self.busy = Busy()
        """The records that are being written."""

    async def apply(
        self,
        source: Source,
        changes: Sequence[Change],
        is_applied: Callable[[Change], bool],
        is_in_time: Callable[[], bool],
    ) -> list[Change]:
        """Applies changes.

        Args:
            source: the records of the collection.
            changes: the changes, all of the collection.
            is_applied: returns whether another task has applied a change.
            is_in_time: returns whether this process may still begin a write; asked before each.

        Returns:
            The changes that were applied: all that were needed, unless the time was over.

        Raises:
            EmbedderUnavailable, EmbedderMisconfigured: there are no vectors now. Deletions were applied.
            VectorIndexError: the index refused or failed a write.
        """
        applied: list[Change] = []
        for change in changes:
            if change.kind is ChangeKind.GROUP and is_in_time():
                await self._delete_group(source, change)
                applied.append(change)
        records = [change for change in changes if change.kind is ChangeKind.RECORD]
        for start in range(0, len(records), EMBED_BATCH):
            some = records[start : start + EMBED_BATCH]
            async with self.busy.holding((source.schema.name, change.subject_id) for change in some):
                needed = [change for change in some if not is_applied(change)]
                subjects = list(dict.fromkeys(change.subject_id for change in needed))
                if subjects and await self._update(source, subjects, is_in_time):
                    applied += needed
        return applied

    async def _delete_group(self, source: Source, change: Change) -> None:
        # A task that has read a record of the group before its deletion must not write the point after this.
        await self.busy.others()
        await self._index.delete_where(source.schema.name, source.group_filter(change.subject_id))

    async def _update(self, source: Source, subjects: Sequence[str], is_in_time: Callable[[], bool]) -> bool:
        """Returns whether the points agree with the records; false if the time was over before."""
        collection = source.schema.name
        records = await source.read(subjects)
        if not is_in_time():
            return False
        await self._delete(source, [subject for subject in subjects if subject not in records])
        present = [(subject, records[subject]) for subject in subjects if subject in records]
        without = [(subject, record) for subject, record in present if record.vector is None]
        embedded = iter(await self._embed(source, without))
        if not is_in_time():
            return False
        points, empty = [], []
        for subject, record in present:
            vector = record.vector if record.vector is not None else next(embedded)
            if vector is None and not source.keep_without_vector:
                empty.append(subject)
            else:
                points.append(Point(source.point_id(subject), vector, record.words, record.payload))
        if points:
            await async_failpoint("index.before_write", collection)
            await self._write(collection, points)
            await async_failpoint("index.after_write", collection)
        await self._delete(source, empty)
        return True

    async def _write(self, collection: str, points: Sequence[Point]) -> None:
        try:
            await self._index.write(collection, points)
        except PointInvalid as error:
            # A point that can never be stored must not block the others.
            if len(points) == 1:
                _log.error("record_not_indexed", point=str(points[0].id), error=str(error))
                await self._index.delete(collection, [points[0].id])
                return
            for point in points:
                await self._write(collection, [point])

    async def _delete(self, source: Source, subjects: Sequence[str]) -> None:
        if subjects:
            collection = source.schema.name
            await async_failpoint("index.before_delete", collection)
            await self._index.delete(collection, [source.point_id(subject) for subject in subjects])
            await async_failpoint("index.after_delete", collection)

    async def _embed(self, source: Source, records: Sequence[tuple[str, Record]]) -> list[Vector | None]:
        """Returns a vector for each record; None for one that has nothing to embed or is refused."""
        if not records:
            return []
        try:
            vectors = await source.embedder.embed([record.text for _, record in records])
        except EmbedderRejected as error:
            # A text that the embedder refuses permanently must not block the others. If it refuses a plain word as
            # well, for example for its key, all wait.
            if len(records) == 1:
                await source.embedder.embed([_PLAIN_WORD])
                _log.warning("record_not_embedded", subject=records[0][0], error=str(error))
                return [None]
            return [vector for record in records for vector in await self._embed(source, [record])]
        return [vector if vector.any() else None for vector in vectors]


BATCH: Final = 128
"""The records that are read and written together. Their changes wait meanwhile."""


class WordRenewal:
    """Knows which collections have the words of the current analysis, and renews the words of others.

    The version of a collection's words is stored with the records.
    """

    def __init__(self, outbox: Outbox, index: NearestIndex, busy: Busy) -> None:
        self._outbox = outbox
        self._index = index
        self._busy = busy

    async def is_current(self, key: str, source: Source, *, is_empty: bool = False) -> bool:
        """Returns whether the points of a collection have current words. Those of an empty one will."""
        if source.words_version is None:
            return True
        if await self._outbox.words_version(key) == source.words_version:
            return True
        if is_empty:
            await self._outbox.put_words_version(key, source.words_version)
        return is_empty

    async def renew(self, source: Source, subjects: Sequence[str]) -> list[str]:
        """Writes the words of these records into their points.

        Returns:
            The records that changed meanwhile. Their points may have the earlier state and must be written again.
        """
        changed: list[str] = []
        for start in range(0, len(subjects), BATCH):
            changed += await self._renew(source, subjects[start : start + BATCH])
        return changed

    async def finish(self, key: str, source: Source) -> None:
        """Notes that all points have current words, once they are on stable storage."""
        await asyncio.sleep(self._index.durable_after_seconds)
        await self._index.flush()
        if source.words_version is not None:
            await self._outbox.put_words_version(key, source.words_version)

    async def _renew(self, source: Source, subjects: Sequence[str]) -> list[str]:
        index: VectorIndex = self._index  # type: ignore[assignment]  # other indexes have no words
        collection = source.schema.name
        async with self._busy.holding((collection, subject) for subject in subjects):
            records = await source.read(subjects)
            of_point = {source.point_id(subject): record for subject, record in records.items()}
            stored = await index.get(collection, list(of_point), with_vectors=True)
            points = [
                Point(point.id, point.vector, of_point[point.id].words, of_point[point.id].payload) for point in stored
            ]
            await index.write(collection, points, WriteMode.UPDATE_PRESENT)
            now = await source.read(subjects)
        return [subject for subject in subjects if now.get(subject) != records.get(subject)]


@dataclass(slots=True)
class Tracked:
    """A registered collection. Times are those of the monotonic clock."""

    key: str
    source: Source
    available: bool = False
    """True if the collection is open in the index."""
    complete: bool = False
    """True if the index has every record with current words, except those of the newest changes."""
    has_current_words: bool = True
    """False if points have words of another version of the analysis."""
    blocked_until: float = 0.0
    """No changes are applied before this time, because the last attempt failed."""
    failure: Exception | None = None
    """The last error, until an attempt succeeds; it is logged once."""
    rebuilding: bool = False
    """True if the collection was created empty while there were records."""
    total: int = 0
    """The number of records when the check that runs, or the last one, began."""
    processed: int = 0
    """The number of records that this check has reached."""
    without_point: int = 0
    """The number of records without a point when the last check ended: their texts have no vector."""
    checked_at: float | None = None
    """When the last check ended; None if none has since the collection was opened."""

    @property
    def name(self) -> str:
        """The name of the collection in the index."""
        return self.source.schema.name

    def is_ready(self, now: float) -> bool:
        """Returns whether changes of the collection can be applied."""
        return self.available and now >= self.blocked_until


RETRY_SECONDS: Final = 5.0
"""The wait after a failure of the index or of an embedder."""
FAILURES: Final = (RetrievalError, MnemeshError)
"""Failures of the index, an embedder or the database, after which work is tried again."""


class Collections:
    """The registered collections of one index."""

    def __init__(
        self, index: NearestIndex, words: WordRenewal, owned_prefixes: Sequence[str], forget: Callable[[], None]
    ) -> None:
        """Creates the list.

        Args:
            index: the index.
            words: knows the versions of words.
            owned_prefixes: `open` drops collections with these prefixes that are not registered.
            forget: is called when flushed and unflushed writes may be lost.
        """
        self.rebuilds = Counter(
            "mnemesh_index_rebuilds", "Collections that were created empty and filled again.", ["reason"]
        )
        self._index = index
        self._words = words
        self._owned_prefixes = tuple(owned_prefixes)
        self._forget = forget
        self._tracked: dict[str, Tracked] = {}
        self._opened = False
        self._replacing = asyncio.Lock()
        self._generation = 0

    def all(self) -> Sequence[Tracked]:
        return tuple(self._tracked.values())

    def get(self, key: str) -> Tracked | None:
        """Returns a collection; None if it is not registered."""
        return self._tracked.get(key)

    def ready(self) -> frozenset[str]:
        """Returns the keys of the collections whose changes can be applied."""
        now = time.monotonic()
        return frozenset(each.key for each in self._tracked.values() if each.is_ready(now))

    def waiting(self) -> frozenset[str]:
        """Returns the keys of the collections whose changes wait for the index or an embedder."""
        return frozenset(self._tracked) - self.ready()

    def require_ready(self) -> None:
        """Raises the error of a collection whose changes wait."""
        for tracked in self.all():
            if not tracked.is_ready(time.monotonic()) and tracked.failure is not None:
                raise tracked.failure

    def remaining(self) -> float:
        """Returns the number of records that running rebuilds have not reached."""
        return float(sum(max(0, each.total - each.processed) for each in self._tracked.values() if not each.complete))

    async def register(self, key: str, source: Source) -> None:
        """Adds a collection; opens it if `open` was called before."""
        tracked = self._tracked[key] = Tracked(key, source)
        if self._opened:
            await self.open_one(tracked)

    async def open(self, *, is_shared: bool) -> None:
        """Opens all collections, and drops others with the owned prefixes.

        Args:
            is_shared: whether the index is of the same history as the records; if not, collections are rebuilt.
        """
        self._opened = True
        for tracked in self.all():
            if not is_shared:
                await self._drop(tracked)
            await self.open_one(tracked, "missing" if is_shared else "other_history")
        names = {each.name for each in self.all()}
        try:
            for name in await self._index.collections():
                if name.startswith(self._owned_prefixes) and name not in names:
                    await self._index.drop_collection(name)
                    _log.info("vector_collection_dropped", collection=name)
        except FAILURES as error:
            _log.warning("vector_collections_not_dropped", error=str(error))

    async def _drop(self, tracked: Tracked) -> None:
        try:
            await self._index.drop_collection(tracked.name)
        except FAILURES as error:
            _log.warning("vector_collection_not_dropped", collection=tracked.name, error=str(error))

    async def open_one(self, tracked: Tracked, reason: str = "missing") -> None:
        """Opens a collection, or creates it. A damaged one is moved aside and created empty; other failures wait."""
        generation = self._generation
        try:
            existed = tracked.name in await self._index.collections()
            await self._index.ensure_collection(tracked.source.schema)
            tracked.total = await tracked.source.count()
            points = await self._index.count(tracked.name, EVERYTHING)
            is_current = await self._words.is_current(tracked.key, tracked.source, is_empty=not points)
            tracked.has_current_words = is_current
        except (IndexDamaged, CollectionMismatch) as error:
            if reason == "damaged":
                self.failed(tracked, error)
            else:
                await self.replace_damaged(error, tracked.name, generation)
        except FAILURES as error:
            self.failed(tracked, error)
        else:
            self._note_opened(tracked, existed, points, reason)

    async def replace_damaged(self, error: Exception, name: str, generation: int) -> None:
        """Moves a damaged collection aside and creates it empty, unless that has happened since `generation`."""
        async with self._replacing:
            if generation != self._generation:
                return
            self._generation += 1
            try:
                moved_to = await self._index.set_aside(name)
            except (RetrievalError, OSError) as failure:
                _log.exception("vector_index_not_replaced", collection=name, error=str(failure))
                for tracked in self.all():
                    if tracked.name == name:
                        self.failed(tracked, failure)
                return
            _log.error("vector_index_damaged", collection=name, error=str(error), moved_to=moved_to)
            self._forget()
            for tracked in self.all():
                await self.open_one(tracked, "damaged")

    @property
    def generation(self) -> int:
        """The number of replacements so far."""
        return self._generation

    def suspect(self, name: str, error: IndexDamaged) -> None:
        """Makes a collection be verified and checked soon."""
        for tracked in self.all():
            if tracked.name == name and tracked.checked_at is not None:
                _log.warning("vector_index_suspected", collection=name, error=str(error))
                tracked.checked_at = None

    def lost(self, tracked: Tracked, error: CollectionMissing) -> None:
        """Notes that the index has closed or lost a collection. It is opened again by the next check."""
        tracked.available = tracked.complete = False
        _log.warning("vector_collection_lost", collection=tracked.name, error=str(error))

    def failed(self, tracked: Tracked, error: Exception) -> None:
        """Notes that a collection cannot be changed now. Its changes wait."""
        tracked.blocked_until = time.monotonic() + RETRY_SECONDS
        known, tracked.failure = tracked.failure, error
        if known is None or str(known) != str(error):
            _log.warning("vector_index_update_failed", collection=tracked.name, error=str(error))

    def retry(self) -> None:
        """Ends the waits after failures."""
        for tracked in self.all():
            tracked.blocked_until = 0.0

    def succeeded(self, tracked: Tracked) -> None:
        """Notes that a collection was changed."""
        if tracked.failure is not None:
            tracked.failure = None
            _log.info("vector_index_update_resumed", collection=tracked.name)

    def _note_opened(self, tracked: Tracked, existed: bool, points: int, reason: str) -> None:
        tracked.available = True
        tracked.processed = 0
        tracked.complete = points >= tracked.total and tracked.has_current_words
        tracked.checked_at = None
        tracked.rebuilding = not existed and tracked.total > 0
        if tracked.rebuilding:
            self.rebuilds.inc(reason)
            _log.warning("vector_index_rebuild_started", collection=tracked.name, reason=reason, records=tracked.total)
        elif not tracked.has_current_words:
            _log.warning("word_renewal_started", collection=tracked.name, records=tracked.total)
        elif not tracked.complete:
            _log.info("vector_index_behind", collection=tracked.name, records=tracked.total, points=points)
