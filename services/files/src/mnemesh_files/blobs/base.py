"""The port of a blob store: contents of any size under ids, written once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

PIECE_BYTES: Final = 1 << 20
"""The largest piece in which a content is read."""


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
