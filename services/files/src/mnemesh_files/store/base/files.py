"""The Protocol of the store of files and of their contents."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_files.model.files import (
    Content,
    File,
    FileFilter,
    FileHeader,
    FileOrder,
    TextPart,
    UploadOutcome,
)


class FileStore(Protocol):
    """Files. All methods raise FileNotFound for a file that does not exist.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing; with other
    content it raises RequestIdReused.
    """

    async def add(
        self,
        organization_id: str,
        file_id: str,
        header: FileHeader,
        source: Content | str,
        subject_id: str,
        key: RequestKey | None,
        *,
        upload_id: str | None = None,
    ) -> tuple[str, UploadOutcome]:
        """Adds a file to a folder, and queues it for processing.

        Decides under the lock of the transaction what a duplicate name means (`header.duplicate_handling`).

        Args:
            organization_id: the organization.
            file_id: the id of the file if it is a new one.
            header: the validated header.
            source: the content, which the blob store has, or the URL from which it will be downloaded.
            subject_id: the author.
            key: the idempotency key, whose fingerprint covers the content.
            upload_id: the upload that ends with this.

        Returns:
            The id of the file that was created, replaced or found, and what happened.

        Raises:
            FolderNotFound: the folder does not exist.
            FileNameTaken: the name is taken, and that is an error.
            UploadNotFound: the upload has ended.
        """

    async def found(self, key: RequestKey | None) -> tuple[str, UploadOutcome] | None:
        """Returns what `add` returned for a key; None if it did not run. Raises RequestIdReused."""

    async def lines(self, organization_id: str, file_id: str, first: int, last: int, max_bytes: int) -> TextPart:
        """Returns lines of the text that views show, as many as fit into `max_bytes` of UTF-8, at least one.

        Args:
            organization_id: the organization.
            file_id: the file.
            first: the first line, from 1.
            last: the last line, inclusive; it may be beyond the end.
            max_bytes: the largest size.

        Raises:
            FileNotParsed: the file has no text.
        """

    async def retry(self, organization_id: str, file_id: str, key: RequestKey | None) -> None:
        """Queues a file for processing, unless it is queued or being processed."""

    async def get(self, organization_id: str, file_id: str) -> File:
        """Returns a file."""

    async def list_page(
        self, organization_id: str, filter_: FileFilter, page: PageQuery, order: FileOrder
    ) -> Page[File]:
        """Returns a page of files; ties by id."""

    async def count(self, organization_id: str, filter_: FileFilter) -> int:
        """Returns the number of files."""

    async def delete(self, organization_id: str, file_id: str, key: RequestKey | None) -> None:
        """Deletes a file. Deleting it again is not an error.

        One transaction: nothing is visible afterwards. What remains of it elsewhere is recorded as a removal.
        """


class BlobRecords(Protocol):
    """The contents in the blob store: which exist, and which nothing refers to.

    A content is removed if no file and no upload refers to it when it is checked. A new one is checked after its hold,
    so that a crash leaves nothing behind.
    """

    async def shared(self, organization_id: str, sha256: str, hold_until: datetime) -> str | None:
        """Returns the id of a stored content with this hash, which is then not removed before `hold_until`."""

    async def reserve(self, organization_id: str, blob_id: str, content_hash: str, size: int, until: datetime) -> None:
        """Records a content that is about to be stored."""

    async def release_unstored(self, organization_id: str, blob_id: str, now: datetime) -> None:
        """Makes a content due to be checked at `now` if no file ever referred to it."""

    async def claim_unused(self, now: datetime, until: datetime, limit: int) -> list[tuple[str, str]]:
        """Returns contents, by organization and id, that nothing refers to and that are due to be checked at `now`.

        They are marked, so that nothing will refer to them, and are returned again after `until` unless `forget` was
        called.
        """

    async def forget(self, organization_id: str, blob_id: str) -> None:
        """Deletes the record of a content that was removed from the blob store."""
