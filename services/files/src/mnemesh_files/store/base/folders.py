"""The Protocol of the store of folders."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_files.model.folders import Folder, FolderDraft, FolderFilter, FolderOrder


class FolderStore(Protocol):
    """Folders. All methods raise FolderNotFound for a folder that does not exist.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing; with other
    content it raises RequestIdReused.
    """

    async def intend(
        self, organization_id: str, folder_id: str, draft: FolderDraft, key: RequestKey | None
    ) -> str | None:
        """Records that an archive for a new folder will be created, so that it is removed if the folder never is.

        Returns:
            None; or the id of the folder that an earlier call with the key created.

        Raises:
            FolderNameTaken: another folder has the name.
        """

    async def forget_intention(self, organization_id: str, folder_id: str) -> None:
        """Removes what `intend` recorded: no archive was created."""

    async def create(self, organization_id: str, folder: Folder, key: RequestKey | None) -> str:
        """Creates a folder with its archive. Returns its id. Raises FolderNameTaken.

        If the name is taken, the archive is removed soon.
        """

    async def get(self, organization_id: str, folder_id: str) -> Folder:
        """Returns a folder."""

    async def list_page(
        self, organization_id: str, filter_: FolderFilter, page: PageQuery, order: FolderOrder
    ) -> Page[Folder]:
        """Returns a page of folders; ties by id."""

    async def count(self, organization_id: str, filter_: FolderFilter) -> int:
        """Returns the number of folders."""

    async def update(
        self,
        organization_id: str,
        folder_id: str,
        values: FolderDraft,
        fields: frozenset[str],
        subject_id: str,
        key: RequestKey | None,
    ) -> None:
        """Sets the named fields to those of `values`. Raises FolderNameTaken."""

    async def delete(self, organization_id: str, folder_id: str, key: RequestKey | None) -> None:
        """Deletes a folder with its files. Deleting it again is not an error.

        One transaction: nothing is visible afterwards. What remains of them elsewhere is recorded as removals.
        """

    async def purge_ledger(self) -> int:
        """Deletes expired idempotency keys; returns their number."""

    async def purge_tombstones(self, before: datetime) -> int:
        """Deletes the tombstones of folders and files that were deleted before; returns their number."""
