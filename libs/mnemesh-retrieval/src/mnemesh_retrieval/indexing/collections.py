"""The collections that the indexer keeps current: they are opened, replaced if they are damaged, and retried."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.metrics import Counter

from mnemesh_retrieval.errors import CollectionMismatch, CollectionMissing, IndexDamaged, RetrievalError
from mnemesh_retrieval.filters import EVERYTHING
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.indexing.applier import WordRenewal
from mnemesh_retrieval.indexing.records import Source


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

_log = structlog.get_logger("mnemesh.retrieval.indexer")


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
