"""The use cases of folders."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mnemesh_kit.call_context import Principal
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock
from mnemesh_types.files import Folder, FolderFilter

from mnemesh_files.clients import ArchivalClient
from mnemesh_files.errors import EmbedderUnknown
from mnemesh_files.ingestion.remover import archive_request
from mnemesh_files.model.folders import FolderOrder, validate_filter, validated_draft, validated_update
from mnemesh_files.store.folders import FolderStore


class FolderService:
    """Folders of the caller's organization.

    Every mutation takes the request's idempotency key, or None. All methods raise FolderNotFound for a folder that
    does not exist, and InvalidArgument for a bad value.

    Args:
        store: the folders.
        archival: the service that has their archives.
        clock: the clock.
        ids: the source of ids.
        removals_added: called after something was deleted.
    """

    def __init__(
        self,
        store: FolderStore,
        archival: ArchivalClient,
        clock: Clock,
        ids: IdSource,
        removals_added: Callable[[], None],
    ) -> None:
        self._store = store
        self._archival = archival
        self._clock = clock
        self._ids = ids
        self._removals_added = removals_added

    async def create(self, caller: Principal, draft: Folder, key: RequestKey | None) -> Folder:
        """Creates a folder and the archive of its passages.

        The archive comes first. An intention is recorded before, so that an archive without a folder is removed.

        Raises:
            FolderNameTaken: another folder has the name.
            EmbedderUnknown: the archival service cannot build the embedder.
        """
        draft = validated_draft(draft)
        # A repeated request has the same id, and so the same archive.
        folder_id = self._ids.new("source") if key is None else derive_id("source", *_parts(key))
        created = await self._store.intend(caller.organization_id, folder_id, draft, key)
        if created is None:
            try:
                archive = await self._archival.create_archive(archive_request(folder_id), draft.name, draft.embedder)
            except EmbedderUnknown:
                await self._store.forget_intention(caller.organization_id, folder_id)
                raise
            now = self._clock.now()
            provenance = replace(
                draft.provenance, created_by_id=caller.subject_id, last_updated_by_id=caller.subject_id
            )
            folder = replace(
                draft,
                id=folder_id,
                embedder=archive.embedder,
                archive_id=archive.id,
                file_count=0,
                size_bytes=0,
                created_at=now,
                updated_at=now,
                provenance=provenance,
            )
            created = await self._store.create(caller.organization_id, folder, key)
        return await self.get(caller, created)

    async def get(self, caller: Principal, folder_id: str) -> Folder:
        return await self._store.get(caller.organization_id, folder_id)

    async def list_page(
        self, caller: Principal, filter_: FolderFilter, page: PageQuery, order: FolderOrder
    ) -> Page[Folder]:
        validate_filter(filter_)
        return await self._store.list_page(caller.organization_id, filter_, page, order)

    async def count(self, caller: Principal, filter_: FolderFilter) -> int:
        """Returns the number of folders."""
        validate_filter(filter_)
        return await self._store.count(caller.organization_id, filter_)

    async def update(
        self, caller: Principal, folder_id: str, draft: Folder, fields: Sequence[str], key: RequestKey | None
    ) -> Folder:
        """Sets the named fields. Raises FolderNameTaken."""
        values = validated_update(draft, fields)
        organization_id = caller.organization_id
        await self._store.update(organization_id, folder_id, values, frozenset(fields), caller.subject_id, key)
        return await self.get(caller, folder_id)

    async def delete(self, caller: Principal, folder_id: str, key: RequestKey | None) -> None:
        """Deletes a folder with its files. Their passages and contents are removed in the background."""
        await self._store.delete(caller.organization_id, folder_id, key)
        self._removals_added()


def _parts(key: RequestKey) -> tuple[str, ...]:
    return key.organization_id, key.request_id, key.fingerprint
