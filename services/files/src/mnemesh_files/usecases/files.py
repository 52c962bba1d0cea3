"""The use cases of files: uploads, lists, contents and deletion."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_files.blobs.contents import Contents
from mnemesh_files.model.files import (
    File,
    FileFilter,
    FileHeader,
    FileOrder,
    TextPart,
    UploadOutcome,
    validate_filter,
    validated_header,
)
from mnemesh_files.store.base.files import FileStore
from mnemesh_files.store.base.folders import FolderStore

MAX_TEXT_BYTES: Final = 1_000_000
"""The largest text in a response, below the largest message that every client accepts."""
MAX_LINES: Final = 2**31 - 1


class FileService:
    """Files of the caller's organization.

    Every mutation takes the request's idempotency key, or None. All methods raise FileNotFound for a file that does
    not exist, and InvalidArgument for a bad value.

    Args:
        store: the files.
        folders: the folders.
        contents: the contents.
        ids: the source of ids.
        checked_url: returns the normal form of a URL that is allowed, and the name of a file in it.
        work_added: called after a file was queued for processing.
        removals_added: called after something was deleted.
    """

    def __init__(
        self,
        store: FileStore,
        folders: FolderStore,
        contents: Contents,
        ids: IdSource,
        checked_url: Callable[[str], tuple[str, str]],
        work_added: Callable[[], None],
        removals_added: Callable[[], None],
    ) -> None:
        self._store = store
        self._folders = folders
        self._contents = contents
        self._ids = ids
        self._checked_url = checked_url
        self._work_added = work_added
        self._removals_added = removals_added

    async def upload(
        self, caller: Principal, header: FileHeader, data: AsyncIterator[bytes], key: RequestKey | None
    ) -> tuple[File, UploadOutcome]:
        """Stores a file and queues it for processing.

        Args:
            caller: the caller.
            header: what the client says of the file.
            data: the content.
            key: the idempotency key. Its fingerprint covers the header; that of the content is added.

        Raises:
            FolderNotFound: the folder does not exist.
            FileNameTaken: the name is taken, and that is an error.
            ContentMismatch: the content has another size or hash than the header announces.
            FileTooLarge: it is beyond the limit.
        """
        header = validated_header(header)
        self._contents.require_size(header)
        await self._folders.get(caller.organization_id, header.folder_id)
        async with self._contents.received(caller.organization_id, header, data) as content:
            if key is not None:
                key = replace(key, fingerprint=f"{key.fingerprint}-{content.sha256}")
            file_id, outcome = await self._store.add(
                caller.organization_id, self._ids.new("file"), header, content, caller.subject_id, key
            )
        self._work_added()
        return await self.get(caller, file_id), outcome

    async def import_url(
        self, caller: Principal, url: str, header: FileHeader, key: RequestKey | None
    ) -> tuple[File, UploadOutcome]:
        """Stores a file whose content is downloaded in the background.

        Raises:
            InvalidArgument: the URL is not allowed.
            FolderNotFound, FileNameTaken, FileTooLarge: as `upload`.
        """
        url, name = self._checked_url(url)
        header = validated_header(replace(header, original_name=header.original_name or name))
        self._contents.require_size(header)
        file_id, outcome = await self._store.add(
            caller.organization_id, self._ids.new("file"), header, url, caller.subject_id, key
        )
        self._work_added()
        return await self.get(caller, file_id), outcome

    async def text(self, caller: Principal, file_id: str, offset: int | None, length: int | None) -> TextPart:
        """Returns lines of the parsed text, at most MAX_TEXT_BYTES.

        Args:
            caller: the caller.
            file_id: the file.
            offset: the number of lines to skip.
            length: the number of lines; None for all.

        Raises:
            FileNotParsed: the file has no text.
        """
        if (offset or 0) < 0 or (offset or 0) >= MAX_LINES:
            raise InvalidArgument("offset must not be negative.", field="offset")
        if length is not None and length < 1:
            raise InvalidArgument("length must be at least 1.", field="length")
        first = (offset or 0) + 1
        last = MAX_LINES if length is None else min(first + length - 1, MAX_LINES)
        return await self._store.lines(caller.organization_id, file_id, first, last, MAX_TEXT_BYTES)

    async def retry(self, caller: Principal, file_id: str, key: RequestKey | None) -> File:
        """Queues a file for processing, unless it is queued or being processed."""
        await self._store.retry(caller.organization_id, file_id, key)
        self._work_added()
        return await self.get(caller, file_id)

    async def get(self, caller: Principal, file_id: str) -> File:
        """Returns a file."""
        return await self._store.get(caller.organization_id, file_id)

    async def list_page(self, caller: Principal, filter_: FileFilter, page: PageQuery, order: FileOrder) -> Page[File]:
        """Returns a page of files."""
        validate_filter(filter_)
        return await self._store.list_page(caller.organization_id, filter_, page, order)

    async def count(self, caller: Principal, filter_: FileFilter) -> int:
        """Returns the number of files."""
        validate_filter(filter_)
        return await self._store.count(caller.organization_id, filter_)

    async def delete(self, caller: Principal, file_id: str, key: RequestKey | None) -> None:
        """Deletes a file. Its passages and its content are removed in the background."""
        await self._store.delete(caller.organization_id, file_id, key)
        self._removals_added()

    async def content(self, caller: Principal, file_id: str, offset: int) -> tuple[File, AsyncIterator[bytes]]:
        """Returns a file and its content from a byte on. A file that is being imported has an empty content."""
        file = await self.get(caller, file_id)
        if not 0 <= offset <= file.size_bytes:
            raise InvalidArgument(
                f"offset must be from 0 to {file.size_bytes:,}, the size of the file.", field="offset"
            )
        return file, self._contents.read(file.blob_id, offset) if file.blob_id is not None else _nothing()


async def _nothing() -> AsyncIterator[bytes]:
    empty: tuple[bytes, ...] = ()
    for piece in empty:
        yield piece
