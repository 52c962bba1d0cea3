"""The writes of points: they agree with the current records, and have the words of the current analysis."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog
from mnemesh_kit.failpoints import async_failpoint

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import EmbedderRejected, PointInvalid
from mnemesh_retrieval.index import NearestIndex, Point, VectorIndex, WriteMode
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.indexing.records import Change, ChangeKind, Record, Source


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
