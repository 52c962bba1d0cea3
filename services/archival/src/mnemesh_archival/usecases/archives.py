"""The use cases of archives, of the agents that they are attached to, and of changes of their embedders."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

import structlog
from mnemesh_kit.admission import MAX_TEXTS
from mnemesh_kit.call_context import Principal, remaining
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.text import require_text
from mnemesh_kit.time import Clock
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import EmbedderRejected
from mnemesh_types.archival import ArchivalSummary, Archive, ArchiveFilter

from mnemesh_archival.errors import EmbedderRefused, EmbedderUnavailable
from mnemesh_archival.model.archives import (
    MAX_NAME_CHARS,
    Erasure,
    require_no_control_characters,
    validate_agent_ids,
    validate_draft,
    validate_filter,
    validate_update_fields,
)
from mnemesh_archival.model.passages import MAX_TEXT_BYTES
from mnemesh_archival.store.archives import ArchiveStore, ReembeddingStore
from mnemesh_archival.store.tables import ReembeddingJob
from mnemesh_archival.vectors import MARGIN_SECONDS, Embedders, PassageIndex

MAX_ALL_TEXTS_BYTES: Final = 3_000_000
MAX_NUMBERS: Final = 2048 * 3072
"""The largest count of numbers in the vectors of a response: 24 MiB."""
BATCH_TEXTS: Final = 128
BATCH_CHARS: Final = 200_000
CONCURRENT_CALLS: Final = 4
"""The number of calls that use one embedder at a time. Others wait within their deadlines."""
MAX_SECONDS: Final = 60.0
"""The time limit of a call without a deadline."""


@dataclass(frozen=True, slots=True)
class EmbeddedTexts:
    """The vectors of texts, in order."""

    embedder: str
    """The embedder that was used."""
    dimension: int
    vectors: Sequence[Vector]
    """One for each text, of shape (dimension,), with norm 1 or zero."""
    tokens: int | None = None
    """The tokens of the texts; None if the embedder does not know them."""


def validate_texts(embedder: str, texts: Sequence[str]) -> None:
    """Checks a handle, which may be empty, and the texts.

    Raises:
        InvalidArgument: the handle or a text is not valid, or there are no texts or too many.
    """
    require_no_control_characters(embedder, "embedder", MAX_NAME_CHARS)
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise InvalidArgument(f"texts must have 1 to {MAX_TEXTS:,} values.", field="texts")
    for index, text in enumerate(texts):
        require_text(text, f"texts[{index}]", max_bytes=MAX_TEXT_BYTES)
    if sum(len(text.encode()) for text in texts) > MAX_ALL_TEXTS_BYTES:
        raise InvalidArgument(
            f"texts must have at most {MAX_ALL_TEXTS_BYTES:,} bytes together. Send several requests.", field="texts"
        )


def validate_count(count: int, embedder: str, dimension: int) -> None:
    """Raises InvalidArgument if the vectors of the texts are too large for one response."""
    if count * dimension > MAX_NUMBERS:
        raise InvalidArgument(
            f"texts must have at most {MAX_NUMBERS // dimension:,} values for the embedder {embedder}, whose vectors "
            f"have {dimension:,} numbers. Send several requests.",
            field="texts",
        )


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts in order, in batches of at most 128 texts and 200,000 characters, or of one long text."""
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and (len(batch) == BATCH_TEXTS or chars + len(text) > BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch


class EmbeddingService:
    """Vectors of texts.

    Texts are embedded in batches, one after another, so that searches and the indexer have their turn at an embedder
    that works on one batch at a time.
    """

    def __init__(self, embedders: Embedders) -> None:
        self._embedders = embedders
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def embed(self, caller: Principal, embedder: str, texts: Sequence[str]) -> EmbeddedTexts:  # noqa: ARG002
        """Returns the vectors of texts.

        Args:
            caller: the caller. Embedders are the same for all organizations.
            embedder: the handle of an embedder; empty for the service's default.
            texts: 1 to 2048 texts.

        Raises:
            InvalidArgument: the handle or the texts are not valid.
            EmbedderUnknown: the configuration does not allow to build the embedder.
            EmbedderUnavailable: the embedder failed, or did not answer in time.
            EmbedderRefused: the embedder's provider refused the request.
        """
        validate_texts(embedder, texts)
        handle = embedder or self._embedders.default
        dimension = self._embedders.get(handle, "embedder").dimension
        validate_count(len(texts), handle, dimension)
        slots = self._slots.get(handle)
        if slots is None:
            slots = self._slots[handle] = asyncio.Semaphore(CONCURRENT_CALLS)
        left = remaining()
        seconds = MAX_SECONDS if left is None else max(0.0, left - MARGIN_SECONDS)
        vectors: list[Vector] = []
        tokens: int | None = 0
        try:
            async with asyncio.timeout(seconds), slots:
                for batch in batches(texts):
                    found = await self._embedders.embed_counted(handle, batch)
                    vectors += found.vectors
                    tokens = None if tokens is None or found.tokens is None else tokens + found.tokens
        except TimeoutError as error:
            raise EmbedderUnavailable(handle, "no answer in time") from error
        except EmbedderUnavailable as error:
            if isinstance(error.__cause__, EmbedderRejected):
                raise EmbedderRefused(handle, str(error.__cause__)) from error
            raise
        return EmbeddedTexts(handle, dimension, vectors, tokens)


BATCH = 64
REMOVAL_BATCH = 500
RETRY_SECONDS = 3.0
"""The wait after a failure."""
POLL_SECONDS = 5.0
"""How often to look for changes of embedder that another replica started or abandoned."""
_log = structlog.get_logger("mnemesh.archival")


class ReembeddingWorker:
    """The background task of a process that changes embedders, each archive in a task of its own.

    Args:
        store: the changes of embedder and their progress.
        index: the passages in the index.
        exclusive: whether no other process uses the index, so that every claim at start is of a process that ended.
    """

    def __init__(self, store: ReembeddingStore, index: PassageIndex, *, exclusive: bool = True) -> None:
        self._store = store
        self._index = index
        self._exclusive = exclusive
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Makes the worker look for new changes at once."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        everything = self._exclusive
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                for job in await self._claim(everything):
                    tasks.create_task(self._try(job), name=f"reembedding of {job.archive_id}")
                everything = False
                await self._remove_left()
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def remove_left(self, *, everything: bool = False) -> None:
        """Adds the changes that delete the points in collections that archives have left.

        Args:
            everything: also where searches that began earlier may still read them. For maintenance.
        """
        more = True
        while more:
            more = await self._store.remove_left(REMOVAL_BATCH, everything=everything)

    async def _claim(self, everything: bool) -> list[ReembeddingJob]:
        try:
            return await self._store.claim(everything=everything)
        except MnemeshError:
            _log.exception("reembedding_claim_failed")
            return []

    async def _remove_left(self) -> None:
        try:
            await self.remove_left()
        except MnemeshError:
            _log.exception("reembedding_removal_failed")

    async def _try(self, job: ReembeddingJob) -> None:
        """Carries out a change. After an error, the change is claimed again once its claim has expired."""
        try:
            if await self._reembed(job):
                _log.info("reembedding_finished", archive_id=job.archive_id, embedder=job.target)
        except MnemeshError:
            _log.exception("reembedding_interrupted", archive_id=job.archive_id, embedder=job.target)

    async def _reembed(self, job: ReembeddingJob) -> bool:
        """Returns whether the archive has the new embedder; False if the change is over for another reason."""
        batch = await self._store.begin_batch(job, None, BATCH, self._index.claim())
        while batch is not None and batch.changes:
            waits = False
            while not await self._index.apply(batch.changes, within=None):
                if not waits:
                    _log.warning("reembedding_waits", archive_id=job.archive_id, embedder=job.target)
                waits = True
                await asyncio.sleep(RETRY_SECONDS)
                if not await self._store.renew(job):
                    return False
            batch = await self._store.begin_batch(job, batch, BATCH, self._index.claim())
        if batch is None:
            return False
        await self._store.switch(job)
        return True


class ArchiveService:
    """Archives of the caller's organization.

    Every mutation takes the request's idempotency key, or None. All methods raise ArchiveNotFound for an archive that
    does not exist, InvalidArgument for a bad value, and AgentErased for an agent that was erased.
    """

    def __init__(
        self,
        store: ArchiveStore,
        index: PassageIndex,
        reembedding: ReembeddingWorker,
        embedders: Embedders,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._index = index
        self._reembedding = reembedding
        self._embedders = embedders
        self._clock = clock
        self._ids = ids

    async def create(
        self, caller: Principal, draft: Archive, agent_ids: Sequence[str], key: RequestKey | None, *, restores: bool
    ) -> Archive:
        """Creates an archive and attaches it to the agents, atomically. A restored one, which keeps its id, times and
        authors, may exist.
        """
        validate_agent_ids(agent_ids, draft.created_for_agent_id)
        archive = self._archive(caller, self._ids.new("archive"), draft)
        if restores:
            archive = _as_restored(archive, draft)
        agents = tuple(dict.fromkeys(agent_ids))
        archive_id = await self._store.create_archive(caller.organization_id, archive, agents, key)
        return await self.get(caller, archive_id)

    async def get(self, caller: Principal, archive_id: str) -> Archive:
        return await self._store.get_archive(caller.organization_id, archive_id)

    async def list_page(
        self, caller: Principal, filter_: ArchiveFilter, page: PageQuery, *, by_name: bool
    ) -> Page[Archive]:
        """Returns a page of archives, by name or by creation time."""
        validate_filter(filter_)
        return await self._store.list_archives(caller.organization_id, filter_, page, by_name)

    async def count(self, caller: Principal, filter_: ArchiveFilter) -> int:
        """Returns the number of archives."""
        validate_filter(filter_)
        return await self._store.count_archives(caller.organization_id, filter_)

    async def update(
        self, caller: Principal, archive_id: str, draft: Archive, fields: Sequence[str], key: RequestKey | None
    ) -> Archive:
        """Sets the named fields. A new embedder serves once all passages are re-embedded in the background."""
        validate_update_fields(fields)
        if "name" not in fields:
            draft = replace(draft, name=archive_id)
        archive = self._archive(caller, archive_id, draft)
        await self._store.update_archive(caller.organization_id, archive, frozenset(fields), key)
        if "embedder" in fields:
            self._reembedding.wake()
        return await self.get(caller, archive_id)

    async def delete(self, caller: Principal, archive_id: str, key: RequestKey | None) -> None:
        """Deletes an archive with its passages and detaches it from all agents."""
        await self._store.delete_archive(caller.organization_id, archive_id, key)
        self._index.notify()

    async def attach(self, caller: Principal, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        await self._store.attach(caller.organization_id, agent_id, archive_id, key)

    async def detach(self, caller: Principal, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        await self._store.detach(caller.organization_id, agent_id, archive_id, key)

    async def list_agents(self, caller: Principal, archive_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the agents that an archive is attached to, by id."""
        return await self._store.list_agents(caller.organization_id, archive_id, page)

    async def summary(self, caller: Principal, agent_id: str, if_revision: int | None) -> ArchivalSummary:
        """Returns counters of an agent's archives; empty and `not_modified` if they are still at `if_revision`."""
        return await self._store.summary(caller.organization_id, agent_id, if_revision)

    async def erase_agent(
        self, caller: Principal, agent_id: str, erasure: Erasure, key: RequestKey | None
    ) -> tuple[int, int]:
        """Erases an agent: detaches its archives, and deletes those created for it that no other agent has.

        Args:
            caller: the caller.
            agent_id: the agent. It never becomes valid again.
            erasure: what else is deleted.
            key: the idempotency key.

        Returns:
            The numbers of passages and of archives that were deleted.
        """
        erased = await self._store.erase_agent(caller.organization_id, agent_id, erasure, key)
        self._index.notify()
        return erased.passages, erased.archives

    def _archive(self, caller: Principal, archive_id: str, draft: Archive) -> Archive:
        validate_draft(draft)
        handle = draft.embedder or self._embedders.default
        now = self._clock.now()
        return replace(
            draft,
            id=archive_id,
            embedder=handle,
            dimension=self._embedders.get(handle).dimension,
            passage_count=0,
            reembedding=None,
            created_at=now,
            updated_at=now,
            provenance=replace(draft.provenance, created_by_id=caller.subject_id, last_updated_by_id=caller.subject_id),
        )


def _as_restored(archive: Archive, restored: Archive) -> Archive:
    """Returns an archive with the values that it had where it was exported."""
    provenance = replace(
        archive.provenance,
        created_by_id=restored.provenance.created_by_id or archive.provenance.created_by_id,
        last_updated_by_id=restored.provenance.last_updated_by_id or archive.provenance.last_updated_by_id,
    )
    return replace(
        archive,
        id=restored.id,
        created_at=restored.created_at,
        updated_at=restored.updated_at,
        provenance=provenance,
    )
