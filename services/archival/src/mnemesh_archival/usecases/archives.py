"""The use cases of the registry: archives, and which agent holds which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_archival.model.archives import (
    MAX_DESCRIPTION_LENGTH,
    MAX_NAME_LENGTH,
    Archive,
    ArchiveDraft,
    ArchiveFilter,
    Summary,
)
from mnemesh_archival.model.texts import checked_free, checked_line, checked_metadata
from mnemesh_archival.store.base import ArchiveStore
from mnemesh_archival.usecases.operation_worker import OperationWorker
from mnemesh_archival.usecases.reembedding import ReembeddingWorker
from mnemesh_archival.vectors.embedders import Embedders

UPDATABLE = frozenset({"name", "description", "metadata", "embedder", "deduplicate"})


class ArchiveService:
    """Archives of the caller's organization."""

    def __init__(
        self,
        store: ArchiveStore,
        finisher: OperationWorker,
        reembedder: ReembeddingWorker,
        embedders: Embedders,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._finisher = finisher
        self._reembedder = reembedder
        self._embedders = embedders
        self._clock = clock
        self._ids = ids

    async def create(
        self, caller: Principal, draft: ArchiveDraft, agent_ids: Sequence[str], key: RequestKey | None
    ) -> Archive:
        """Make an archive that the given agents hold from the start."""
        archive = self._archive(caller, self._ids.new("archive"), draft)
        made = await self._store.create_archive(caller.organization_id, archive, tuple(dict.fromkeys(agent_ids)), key)
        return await self.get(caller, made)

    async def get(self, caller: Principal, archive_id: str) -> Archive:
        """One archive."""
        return await self._store.get_archive(caller.organization_id, archive_id)

    async def list_page(
        self, caller: Principal, which: ArchiveFilter, page: PageQuery, *, by_name: bool
    ) -> Page[Archive]:
        """A page of archives."""
        return await self._store.list_archives(caller.organization_id, which, page, by_name)

    async def count(self, caller: Principal, which: ArchiveFilter) -> int:
        """How many archives there are."""
        return await self._store.count_archives(caller.organization_id, which)

    async def update(
        self, caller: Principal, archive_id: str, draft: ArchiveDraft, fields: Sequence[str], key: RequestKey | None
    ) -> Archive:
        """Set the named fields. Another embedder serves once it has embedded all passages, in the background."""
        if not fields or not UPDATABLE.issuperset(fields):
            raise InvalidArgument(f"update_mask must name some of {', '.join(sorted(UPDATABLE))}.", field="update_mask")
        if "name" not in fields:
            draft = replace(draft, name=archive_id)
        archive = self._archive(caller, archive_id, draft)
        await self._store.update_archive(caller.organization_id, archive, frozenset(fields), key)
        if "embedder" in fields:
            self._reembedder.wake()
        return await self.get(caller, archive_id)

    async def delete(self, caller: Principal, archive_id: str, key: RequestKey | None) -> None:
        """Delete an archive with its passages, and take it from everybody."""
        for operation in await self._store.delete_archive(caller.organization_id, archive_id, key):
            await self._finisher.finish(operation)

    async def attach(self, caller: Principal, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Give an archive to an agent."""
        await self._store.attach(caller.organization_id, agent_id, archive_id, key)

    async def detach(self, caller: Principal, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Take it away."""
        await self._store.detach(caller.organization_id, agent_id, archive_id, key)

    async def list_agents(self, caller: Principal, archive_id: str, page: PageQuery) -> Page[str]:
        """Who holds an archive."""
        return await self._store.list_agents(caller.organization_id, archive_id, page)

    async def summary(self, caller: Principal, agent_id: str, if_revision: int | None) -> Summary:
        """How much an agent has, from counters."""
        return await self._store.summary(caller.organization_id, agent_id, if_revision)

    async def erase_agent(
        self, caller: Principal, agent_id: str, *, delete_shared: bool, key: RequestKey | None
    ) -> tuple[int, int]:
        """Forget an agent; how many passages and archives went with it."""
        erased = await self._store.erase_agent(caller.organization_id, agent_id, delete_shared, key)
        for operation in erased.operations:
            await self._finisher.finish(operation)
        return erased.passages, erased.archives

    def _archive(self, caller: Principal, archive_id: str, draft: ArchiveDraft) -> Archive:
        handle = draft.embedder or self._embedders.default
        now = self._clock.now()
        if draft.description is not None:
            checked_free(draft.description, "archive.description", MAX_DESCRIPTION_LENGTH)
        provenance = replace(draft.provenance, created_by_id=caller.subject_id, last_updated_by_id=caller.subject_id)
        return Archive(
            id=archive_id,
            name=checked_line(draft.name, "archive.name", MAX_NAME_LENGTH),
            description=draft.description,
            embedder=handle,
            dimension=self._embedders.get(handle).dimension,
            metadata=checked_metadata(draft.metadata, "archive.metadata"),
            deduplicate=draft.deduplicate,
            created_at=now,
            updated_at=now,
            provenance=provenance,
        )
