"""The use cases of files and of uploads."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock
from mnemesh_types.files import FileFilter, FileHeader, Folder, FolderFilter, Upload, UploadOutcome

from mnemesh_files.blobs.contents import Contents
from mnemesh_files.clients import ArchivalClient
from mnemesh_files.errors import EmbedderUnknown, UploadGap
from mnemesh_files.ingestion import archive_request
from mnemesh_files.model.files import (
    LIFETIME,
    File,
    FileOrder,
    FolderOrder,
    TextPart,
    UploadPart,
    validate_filter,
    validate_folder_filter,
    validated_draft,
    validated_header,
    validated_update,
)
from mnemesh_files.store.files import FileStore, UploadStore
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
        validate_folder_filter(filter_)
        return await self._store.list_page(caller.organization_id, filter_, page, order)

    async def count(self, caller: Principal, filter_: FolderFilter) -> int:
        """Returns the number of folders."""
        validate_folder_filter(filter_)
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


MAX_TEXT_BYTES: Final = 1_000_000
"""The largest text in a response, below the largest message that every client accepts."""
MAX_LINES: Final = 2**31 - 1

PART_BYTES = 16 * 1024 * 1024
"""After how many bytes the data of a stream is durable."""


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
        return await self._store.get(caller.organization_id, file_id)

    async def list_page(self, caller: Principal, filter_: FileFilter, page: PageQuery, order: FileOrder) -> Page[File]:
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
        return file, self._contents.read(file.blob_id, offset) if file.blob_id is not None else _yield_nothing()


async def _yield_nothing() -> AsyncIterator[bytes]:
    empty: tuple[bytes, ...] = ()
    for piece in empty:
        yield piece


@dataclass(frozen=True, slots=True)
class UploadStores:
    """The stores that uploads need."""

    uploads: UploadStore
    files: FileStore
    folders: FolderStore


class UploadService:
    """Unfinished uploads of the caller's organization. All methods raise UploadNotFound for one that has ended.

    Args:
        stores: the uploads, the files and the folders.
        contents: the contents.
        clock: the clock.
        ids: the source of ids.
        limit: how many unfinished uploads an organization may have.
        work_added: called after a file was queued for processing.
    """

    def __init__(
        self,
        stores: UploadStores,
        contents: Contents,
        clock: Clock,
        ids: IdSource,
        limit: int,
        work_added: Callable[[], None],
    ) -> None:
        self._uploads = stores.uploads
        self._files = stores.files
        self._folders = stores.folders
        self._contents = contents
        self._clock = clock
        self._ids = ids
        self._limit = limit
        self._work_added = work_added

    async def start(self, caller: Principal, header: FileHeader, key: RequestKey | None) -> Upload:
        """Starts an upload.

        Raises:
            FolderNotFound: the folder does not exist.
            FileTooLarge: the announced size is beyond the limit.
            TooManyUploads: the organization has too many unfinished ones.
        """
        header = validated_header(header)
        self._contents.require_size(header)
        await self._folders.get(caller.organization_id, header.folder_id)
        now = self._clock.now()
        upload = Upload(self._ids.new("upload"), header, 0, created_at=now, expires_at=now + LIFETIME)
        upload_id = await self._uploads.start(caller.organization_id, upload, self._limit, key)
        return await self.get(caller, upload_id)

    async def get(self, caller: Principal, upload_id: str) -> Upload:
        return await self._uploads.get(caller.organization_id, upload_id)

    async def write(self, caller: Principal, upload_id: str, offset: int, data: AsyncIterator[bytes]) -> Upload:
        """Appends data. What the server has already is skipped; what arrived before the stream broke is kept.

        Raises:
            UploadGap: the data begins after the end of what the server has.
            FileTooLarge: it is beyond the limit.
        """
        if offset < 0:
            raise InvalidArgument("offset must not be negative.", field="offset")
        upload = await self.get(caller, upload_id)
        if offset > upload.received_bytes:
            raise UploadGap(upload_id, upload.received_bytes)
        pieces = _Pieces(data, upload.received_bytes - offset)
        end = upload.received_bytes
        while await pieces.has_more():
            part = await self._contents.receive_part(caller.organization_id, end, pieces, PART_BYTES)
            expires_at = self._clock.now() + LIFETIME
            if not await self._uploads.append(caller.organization_id, upload_id, part, expires_at):
                await self._contents.discard(caller.organization_id, part.blob_id)
                raise UploadGap(upload_id, (await self.get(caller, upload_id)).received_bytes)
            end += part.size_bytes
            pieces.raise_if_broken()
        return await self.get(caller, upload_id)

    async def finish(self, caller: Principal, upload_id: str, key: RequestKey | None) -> tuple[File, UploadOutcome]:
        """Verifies an upload, stores it as a file and queues it for processing.

        Raises:
            ContentMismatch: the data has another size or hash than the header announces. The upload is kept.
            FileNameTaken, FolderNotFound: see FileService.upload.
        """
        done = await self._files.find_repeated(key)
        if done is None:
            organization_id = caller.organization_id
            upload = await self.get(caller, upload_id)
            parts = await self._uploads.parts(organization_id, upload_id)
            async with self._contents.received(organization_id, upload.header, self._join(parts)) as content:
                done = await self._files.add(
                    organization_id,
                    self._ids.new("file"),
                    upload.header,
                    content,
                    caller.subject_id,
                    key,
                    upload_id=upload_id,
                )
            self._work_added()
        file_id, outcome = done
        return await self._files.get(caller.organization_id, file_id), outcome

    async def cancel(self, caller: Principal, upload_id: str, key: RequestKey | None) -> None:
        """Discards an upload."""
        await self._uploads.cancel(caller.organization_id, upload_id, key)

    async def _join(self, parts: Sequence[UploadPart]) -> AsyncIterator[bytes]:
        for part in parts:
            async for piece in self._contents.read(part.blob_id):
                yield piece


class _Pieces:
    """The pieces of a stream after its first bytes. An error of the stream ends it, and is raised later."""

    def __init__(self, data: AsyncIterator[bytes], skip: int) -> None:
        self._data = data
        self._skip = skip
        self._next = b""
        self._error: BaseException | None = None
        self._ended = False

    async def has_more(self) -> bool:
        """Returns whether there is another byte. Raises the error of the stream if it broke at once."""
        await self._fill()
        self.raise_if_broken()
        return bool(self._next)

    async def take(self, at_most: int) -> bytes:
        """Returns the next piece, b"" at the end or where the stream broke."""
        await self._fill()
        piece, self._next = self._next[:at_most], self._next[at_most:]
        return piece

    def raise_if_broken(self) -> None:
        """Raises the error with which the stream ended."""
        if self._error is not None:
            raise self._error

    async def _fill(self) -> None:
        while not self._next and not self._ended:
            try:
                piece = await anext(self._data)
            except StopAsyncIteration:
                self._ended = True
                return
            except BaseException as error:
                self._ended, self._error = True, error
                return
            self._skip, piece = max(0, self._skip - len(piece)), piece[self._skip :]
            self._next = piece
