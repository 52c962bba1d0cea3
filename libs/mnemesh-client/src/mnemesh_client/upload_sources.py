"""The content of uploads: files, bytes and file objects, with their size and SHA-256."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, BinaryIO, Final

from mnemesh_kit.errors import FailedPrecondition, InvalidArgument

from mnemesh_client.transport import in_thread

Source = str | os.PathLike[str] | bytes | BinaryIO
PIECE_BYTES: Final = 1_000_000
"""The size of a message with data; a message may have 1 MB."""
_MEMORY_BYTES: Final = 8_000_000
# Without O_NONBLOCK, opening a named pipe would wait for a writer. Windows has no such flag, and needs O_BINARY.
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(slots=True)
class Content:
    """The content of an upload. It can be read again from any offset."""

    file: IO[bytes]
    name: str
    """The name of the file; empty if the source has none."""
    size: int
    sha256: str
    modified_at: datetime | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held while the file is read. The call of a broken connection may still read it when the next one begins."""

    async def pieces(self, offset: int, end: int) -> AsyncIterator[bytes]:
        """Yields the bytes from an offset to an end, in pieces for one message each.

        Raises:
            FailedPrecondition: the file became shorter, or cannot be read.
        """
        while offset < end:
            try:
                piece = await in_thread(self._read, offset, min(PIECE_BYTES, end - offset))
            except (OSError, ValueError) as error:  # ValueError: it was closed
                problem = error.strerror if isinstance(error, OSError) else error
                raise FailedPrecondition(f"{self.name or 'The file'} cannot be read: {problem}.") from error
            if not piece:
                raise self.changed()
            yield piece
            offset += len(piece)

    async def is_unchanged(self) -> bool:
        """Returns whether the file still has the content whose hash is known."""
        return await in_thread(self._hash) == (self.size, self.sha256)

    def changed(self) -> FailedPrecondition:
        """Returns the error of a file that changed."""
        return FailedPrecondition(f"{self.name or 'The file'} changed during the upload. Upload it again.")

    def _read(self, offset: int, length: int) -> bytes:
        with self.lock:
            self.file.seek(offset)
            return self.file.read(length)

    def _hash(self) -> tuple[int, str]:
        with self.lock:
            return _hash(self.file)


@asynccontextmanager
async def opened(source: Source) -> AsyncIterator[Content]:
    """Opens the content of an upload, and computes its hash.

    Args:
        source: the path of a file, the content, or a file object that is open for reading bytes. A file object is
            read from its position to its end, and copied to a temporary file if it is large.

    Raises:
        InvalidArgument: the source is no readable file.
    """
    file, name, modified_at = await in_thread(_open, source)
    try:
        size, sha256 = await in_thread(_hash, file)
        yield Content(file, name, size, sha256, modified_at)
    finally:
        file.close()


async def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    return await in_thread(_sha256, path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(source: Source) -> tuple[IO[bytes], str, datetime | None]:
    if isinstance(source, bytes):
        return io.BytesIO(source), "", None
    if isinstance(source, str | os.PathLike):
        return _open_path(Path(source))
    copy = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115  (closed by `opened`)
    try:
        shutil.copyfileobj(source, copy)
    except (TypeError, AttributeError, ValueError) as error:
        copy.close()
        raise InvalidArgument(
            "The file object cannot be read as bytes. Open it with mode 'rb'.", field="source"
        ) from error
    name = getattr(source, "name", None)
    return copy, Path(name).name if isinstance(name, str) else "", None


def _open_path(path: Path) -> tuple[IO[bytes], str, datetime | None]:
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"{path} cannot be read: {problem}.", field="source") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"{path} is no regular file. Name a file.", field="source")
    return os.fdopen(descriptor, "rb"), path.name, datetime.fromtimestamp(status.st_mtime, UTC)


def _hash(file: IO[bytes]) -> tuple[int, str]:
    """Returns size and SHA-256 of a file."""
    file.seek(0)
    digest = hashlib.sha256()
    size = 0
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()
