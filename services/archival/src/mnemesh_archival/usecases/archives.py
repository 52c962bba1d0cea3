"""The use cases of archives, of the agents that they are attached to, and of changes of their embedders."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock
from mnemesh_types.archival import ArchivalSummary, Archive, ArchiveFilter

from mnemesh_archival.model.archives import (
    Erasure,
    validate_agent_ids,
    validate_draft,
    validate_filter,
    validate_update_fields,
)
from mnemesh_archival.store.archives import ArchiveStore, ReembeddingStore
from mnemesh_archival.store.values import ReembeddingJob
from mnemesh_archival.vectors import Embedders, PassageIndex

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
