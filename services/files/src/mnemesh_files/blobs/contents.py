"""The contents of files as uploaded: the port of a blob store, and a local directory."""

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog
from mnemesh_kit.errors import StorageFull, Unavailable
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.ids import IdSource
from mnemesh_kit.metrics import Counter
from mnemesh_kit.time import Clock
from mnemesh_types.files import FileHeader

from mnemesh_files.errors import ContentMissing, FileSpaceFull, FileTooLarge
from mnemesh_files.model.files import LIFETIME, Content, UploadPart, verify_content
from mnemesh_files.store.file_rows import BlobRecords

PIECE_BYTES: Final = 1 << 20
"""The largest piece in which a content is read."""

HOLD: Final = timedelta(hours=1)
"""How long a content is kept although nothing refers to it yet. It is longer than the end of any upload."""
REMOVAL: Final = timedelta(minutes=5)
"""After what time a removal that was interrupted is repeated."""
UNFINISHED: Final = HOLD
"""The age at which a content that was not received to its end is removed: its upload has ended."""
SWEEP_BATCH: Final = 100
_log = structlog.get_logger("mnemesh.files")


class BlobWriter(Protocol):
    """A content that is being written. Nothing of it can be read before `finish`."""

    async def write(self, data: bytes) -> None:
        """Appends data. Raises StorageFull, Unavailable."""

    async def finish(self) -> None:
        """Makes the content durable under its id. Raises StorageFull, Unavailable."""

    async def abort(self) -> None:
        """Discards the content; nothing after `finish`. Errors are logged."""


class BlobStore(Protocol):
    """Contents under ids.

    Example:
        >>> writer = await store.create("blob-1")
        >>> await writer.write(b"text")
        >>> await writer.finish()
        >>> [piece async for piece in store.read("blob-1", offset=2)]
        [b'xt']
    """

    async def create(self, blob_id: str) -> BlobWriter:
        """Begins a new content. Raises StorageFull, Unavailable."""

    def read(self, blob_id: str, offset: int = 0) -> AsyncIterator[bytes]:
        """Yields a content from a byte on, in pieces of at most PIECE_BYTES.

        Raises:
            ContentMissing: there is no such content.
            Unavailable: the store cannot be reached.
        """

    def local_copy(self, blob_id: str) -> AbstractAsyncContextManager[Path]:
        """Returns a context in which the content is a file of this machine that others may read, not write.

        Raises:
            ContentMissing, Unavailable, StorageFull: as above.
        """

    async def delete(self, blob_id: str) -> None:
        """Removes a content. One that does not exist is not an error. Raises Unavailable."""

    async def discard_unfinished(self, before: datetime) -> int:
        """Removes what writers that ended without `finish` or `abort` left before; returns their number."""

    async def close(self) -> None:
        """Releases connections."""


class Pieces(Protocol):
    """A stream of bytes."""

    async def take(self, at_most: int) -> bytes:
        """Returns the next piece, not larger than this; b"" at the end."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The largest content of a file, and of all files of an organization together, in bytes. 0 is unlimited."""

    of_file: int
    of_organization: int = 0

    def require(self, size: int, used: int) -> None:
        """Raises FileTooLarge or FileSpaceFull if a content is too large beside the other files, which use bytes."""
        if size > self.of_file:
            raise FileTooLarge(self.of_file)
        if self.of_organization and size + used > self.of_organization:
            raise FileSpaceFull(self.of_organization, used)


class Contents:
    """The contents of files in the blob store.

    Args:
        blobs: the blob store.
        records: what the blob store has, and who refers to it.
        clock: the clock.
        ids: the source of ids.
        limits: the largest contents.
    """

    def __init__(self, blobs: BlobStore, records: BlobRecords, clock: Clock, ids: IdSource, limits: SizeLimits) -> None:
        self._blobs = blobs
        self._records = records
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self.received_bytes = Counter("mnemesh_files_received_bytes", "Bytes of contents that were received.")
        self.received_contents = Counter("mnemesh_files_received", "Contents that were received.", ["outcome"])

    def require_size(self, header: FileHeader) -> None:
        """Raises FileTooLarge if the announced size is beyond the limit."""
        if header.size_bytes is not None:
            self._limits.require(header.size_bytes, 0)

    async def receive(self, organization_id: str, header: FileHeader, pieces: AsyncIterator[bytes]) -> Content:
        """Stores a content and returns it, or an equal one that the organization has.

        The content is removed after HOLD, unless a file refers to it.

        Raises:
            FileTooLarge: it is beyond the limit.
            FileSpaceFull: it does not fit into what the organization may store.
            ContentMismatch: the header announces another size or hash.
            StorageFull, Unavailable: the blob store failed.
        """
        used = await self._used(organization_id)
        self._limits.require(header.size_bytes or 0, used)
        blob_id = self._ids.new("blob")
        writer = await self._blobs.create(blob_id)
        try:
            size, digest = 0, hashlib.sha256()
            async for piece in pieces:
                size += len(piece)
                self.received_bytes.inc(by=len(piece))
                self._limits.require(size, used)
                await asyncio.to_thread(digest.update, piece)
                await writer.write(piece)
            sha256 = digest.hexdigest()
            verify_content(header, size, sha256)
            until = self._clock.now() + HOLD
            shared = await self._records.find_shared(organization_id, sha256, until)
            if shared is not None:
                await writer.abort()
                self.received_contents.inc("shared")
                return Content(shared, size, sha256)
            await self._records.reserve(organization_id, blob_id, sha256, size, until)
            await writer.finish()
        except BaseException:
            self.received_contents.inc("refused")
            await writer.abort()
            raise
        self.received_contents.inc("stored")
        return Content(blob_id, size, sha256)

    @asynccontextmanager
    async def received(
        self, organization_id: str, header: FileHeader, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[Content]:
        """Stores a content as `receive` does. The next sweep removes it if the block, which adds the file, fails."""
        content = await self.receive(organization_id, header, pieces)
        try:
            yield content
        except BaseException:
            await self._records.release_unstored(organization_id, content.blob_id, self._clock.now())
            raise

    async def receive_part(self, organization_id: str, offset: int, pieces: Pieces, max_bytes: int) -> UploadPart:
        """Stores the next bytes of an upload, at most `max_bytes`, and returns them as a part.

        Raises:
            FileTooLarge: the upload is beyond the limit.
            FileSpaceFull: it does not fit into what the organization may store.
            StorageFull, Unavailable: the blob store failed.
        """
        used = await self._used(organization_id)
        blob_id = self._ids.new("blob")
        until = self._clock.now() + LIFETIME
        await self._records.reserve(organization_id, blob_id, "", 0, until)
        writer = await self._blobs.create(blob_id)
        try:
            size = 0
            while size < max_bytes and (piece := await pieces.take(max_bytes - size)):
                size += len(piece)
                self.received_bytes.inc(by=len(piece))
                self._limits.require(offset + size, used)
                await writer.write(piece)
            await writer.finish()
        except BaseException:
            self.received_contents.inc("refused")
            await writer.abort()
            raise
        self.received_contents.inc("stored")
        return UploadPart(blob_id, offset, size)

    async def _used(self, organization_id: str) -> int:
        """Returns the bytes of an organization's files, if they are limited. Unfinished uploads are not files yet."""
        return await self._records.used_bytes(organization_id) if self._limits.of_organization else 0

    async def discard(self, organization_id: str, blob_id: str) -> None:
        """Removes a content that nothing refers to."""
        await self._blobs.delete(blob_id)
        await self._records.forget(organization_id, blob_id)

    def read(self, blob_id: str, offset: int = 0) -> AsyncIterator[bytes]:
        """Yields a content from a byte on. See BlobStore.read."""
        return self._blobs.read(blob_id, offset)

    async def sweep(self) -> int:
        """Removes the contents that nothing refers to; returns their number."""
        removed = 0
        while True:
            now = self._clock.now()
            claimed = await self._records.claim_unused(now, now + REMOVAL, SWEEP_BATCH)
            for organization_id, blob_id in claimed:
                await async_failpoint("blob.before_delete", "sweep")
                await self._blobs.delete(blob_id)
                await async_failpoint("blob.after_delete", "sweep")
                await self._records.forget(organization_id, blob_id)
            removed += len(claimed)
            if not claimed:
                break
        if removed:
            _log.info("contents_removed", count=removed)
        return removed

    async def discard_unfinished(self, *, at_start: bool = False) -> None:
        """Removes what interrupted uploads left in the blob store.

        Args:
            at_start: whether no upload can be running, so that its age does not matter.
        """
        before = datetime.max.replace(tzinfo=UTC) if at_start else self._clock.now() - UNFINISHED
        removed = await self._blobs.discard_unfinished(before)
        if removed:
            _log.info("unfinished_contents_removed", count=removed)


T = TypeVar("T")

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_UNFINISHED: Final = "unfinished"


class LocalBlobStore:
    """See BlobStore. Files are `<directory>/<two digits of the id>/<id>`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def create(self, blob_id: str) -> "LocalWriter":
        """See BlobStore.create."""
        unfinished = self._directory / _UNFINISHED / blob_id

        def create() -> int:
            unfinished.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

        return LocalWriter(await _in_thread(create), unfinished, self._path(blob_id))

    async def read(self, blob_id: str, offset: int = 0) -> AsyncIterator[bytes]:
        """See BlobStore.read."""
        path = self._path(blob_id)
        try:
            file = await _in_thread(lambda: path.open("rb"))
        except FileNotFoundError:
            raise ContentMissing(blob_id) from None
        with file:
            await _in_thread(lambda: file.seek(offset))
            while piece := await _in_thread(lambda: file.read(PIECE_BYTES)):
                yield piece

    @asynccontextmanager
    async def local_copy(self, blob_id: str) -> AsyncIterator[Path]:
        """See BlobStore.local_copy. The file itself: its content never changes."""
        path = self._path(blob_id)
        if not await _in_thread(path.is_file):
            raise ContentMissing(blob_id)
        yield path

    async def delete(self, blob_id: str) -> None:
        """See BlobStore.delete."""
        path = self._path(blob_id)
        unfinished = self._directory / _UNFINISHED / blob_id

        def delete() -> None:
            path.unlink(missing_ok=True)
            unfinished.unlink(missing_ok=True)

        await _in_thread(delete)

    async def discard_unfinished(self, before: datetime) -> int:
        """See BlobStore.discard_unfinished."""

        def discard() -> int:
            directory = self._directory / _UNFINISHED
            found = list(directory.iterdir()) if directory.is_dir() else []
            old = [path for path in found if path.stat().st_mtime < before.timestamp()]
            for path in old:
                path.unlink(missing_ok=True)
            return len(old)

        return await _in_thread(discard)

    async def close(self) -> None:
        """See BlobStore.close."""

    def _path(self, blob_id: str) -> Path:
        return self._directory / blob_id[-2:] / blob_id


class LocalWriter:
    """See BlobWriter."""

    def __init__(self, descriptor: int, unfinished: Path, path: Path) -> None:
        self._descriptor = descriptor
        self._unfinished = unfinished
        self._path = path

    async def write(self, data: bytes) -> None:
        """See BlobWriter.write."""
        descriptor = self._descriptor

        def write() -> None:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

        await _in_thread(write)

    async def finish(self) -> None:
        """See BlobWriter.finish."""

        def flush() -> None:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

        def publish() -> None:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._unfinished.rename(self._path)
            for directory in (self._path.parent, self._path.parent.parent):
                _flush_directory(directory)

        await _in_thread(flush)
        await async_failpoint("blob.before_publish", "local")
        await _in_thread(publish)

    async def abort(self) -> None:
        """See BlobWriter.abort."""

        def discard() -> None:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            self._unfinished.unlink(missing_ok=True)

        try:
            await _in_thread(discard)
        except Unavailable:
            _log.exception("blob_not_discarded", path=str(self._unfinished))


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _in_thread(fn: Callable[[], T]) -> T:
    """Runs a function of the file system in a thread.

    Raises:
        StorageFull: the disk is full or read-only.
        Unavailable: it cannot be used for another reason.
        FileNotFoundError: a file does not exist.
    """
    try:
        return await asyncio.to_thread(fn)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(
                "The disk of the contents of files is full or read-only. Make space, then retry."
            ) from error
        raise Unavailable("The contents of files cannot be read or written. Retry later.") from error
