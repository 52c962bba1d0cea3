"""Receiving contents into the blob store, and removing those that nothing refers to."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import structlog
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.ids import IdSource
from mnemesh_kit.metrics import Counter
from mnemesh_kit.time import Clock
from mnemesh_types.files import FileHeader

from mnemesh_files.errors import FileTooLarge
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


class Contents:
    """The contents of files in the blob store.

    Args:
        blobs: the blob store.
        records: what the blob store has, and who refers to it.
        clock: the clock.
        ids: the source of ids.
        max_bytes: the largest content.
    """

    def __init__(self, blobs: BlobStore, records: BlobRecords, clock: Clock, ids: IdSource, max_bytes: int) -> None:
        self._blobs = blobs
        self._records = records
        self._clock = clock
        self._ids = ids
        self._max_bytes = max_bytes
        self.received_bytes = Counter("mnemesh_files_received_bytes", "Bytes of contents that were received.")
        self.received_contents = Counter("mnemesh_files_received", "Contents that were received.", ["outcome"])

    def require_size(self, header: FileHeader) -> None:
        """Raises FileTooLarge if the announced size is beyond the limit."""
        if header.size_bytes is not None and header.size_bytes > self._max_bytes:
            raise FileTooLarge(self._max_bytes)

    async def receive(self, organization_id: str, header: FileHeader, pieces: AsyncIterator[bytes]) -> Content:
        """Stores a content and returns it, or an equal one that the organization has.

        The content is removed after HOLD, unless a file refers to it.

        Raises:
            FileTooLarge: it is beyond the limit.
            ContentMismatch: the header announces another size or hash.
            StorageFull, Unavailable: the blob store failed.
        """
        blob_id = self._ids.new("blob")
        writer = await self._blobs.create(blob_id)
        try:
            size, digest = 0, hashlib.sha256()
            async for piece in pieces:
                size += len(piece)
                self.received_bytes.inc(by=len(piece))
                if size > self._max_bytes:
                    raise FileTooLarge(self._max_bytes)
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
            StorageFull, Unavailable: the blob store failed.
        """
        blob_id = self._ids.new("blob")
        until = self._clock.now() + LIFETIME
        await self._records.reserve(organization_id, blob_id, "", 0, until)
        writer = await self._blobs.create(blob_id)
        try:
            size = 0
            while size < max_bytes and (piece := await pieces.take(max_bytes - size)):
                size += len(piece)
                self.received_bytes.inc(by=len(piece))
                if offset + size > self._max_bytes:
                    raise FileTooLarge(self._max_bytes)
                await writer.write(piece)
            await writer.finish()
        except BaseException:
            self.received_contents.inc("refused")
            await writer.abort()
            raise
        self.received_contents.inc("stored")
        return UploadPart(blob_id, offset, size)

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
