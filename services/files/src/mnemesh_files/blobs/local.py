"""A blob store in a directory: each content is a file, written under another name, flushed and renamed."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import structlog
from mnemesh_kit.errors import StorageFull, Unavailable
from mnemesh_kit.failpoints import async_failpoint

from mnemesh_files.blobs.contents import PIECE_BYTES
from mnemesh_files.errors import ContentMissing

T = TypeVar("T")

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_UNFINISHED: Final = "unfinished"
_log = structlog.get_logger("mnemesh.files")


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
