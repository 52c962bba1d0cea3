"""Uploads and downloads that survive broken connections, and the names that the files of a directory get."""

import hashlib
import io
import os
import shutil
import stat
import tempfile
import threading
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, BinaryIO, Final

from mnemesh.files.v1 import files_pb2, files_service_pb2, files_service_pb2_grpc
from mnemesh_kit.errors import FailedPrecondition, Internal, InvalidArgument, MnemeshError, Unavailable

from mnemesh_client.patience import Patience
from mnemesh_client.transport import closing, in_thread

SEPARATOR: Final = "--"
_LONGEST: Final = 255
_DIGEST_CHARS: Final = 12
Source = str | os.PathLike[str] | bytes | BinaryIO
PIECE_BYTES: Final = 1_000_000
"""The size of a message with data; a message may have 1 MB."""
_MEMORY_BYTES: Final = 8_000_000
# Without O_NONBLOCK, opening a named pipe would wait for a writer. Windows has no such flag, and needs O_BINARY.
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
OnProgress = Callable[[int, int], None]
"""Receives the number of bytes that were sent, and the size of the file."""
PART_BYTES: Final = 8_000_000
"""The size of the largest file that is sent in one call, and of the parts of others."""
_BASE_SECONDS: Final = 60.0
_SLOWEST_BYTES_PER_SECOND: Final = 50_000
_CANCELLATION_SECONDS: Final = 3.0
_HASHING_BYTES_PER_SECOND: Final = 20_000_000


def folder_name_of(path: str) -> str:
    """Returns the name in a folder of the file with a relative path.

    Characters are normalized to NFC, because some systems store "é" as two characters. A name of more than 255
    characters begins with a hash of the path and keeps the end.
    """
    name = unicodedata.normalize("NFC", path).replace("/", SEPARATOR)
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:_DIGEST_CHARS]
    return f"{digest}{SEPARATOR}{name[-(_LONGEST - _DIGEST_CHARS - len(SEPARATOR)) :]}"


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
        InvalidArgument: the source is not a readable file.
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
        raise InvalidArgument(f"{path} is not a regular file. Name a file.", field="source")
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


class Upload:
    """The upload of one content. It survives broken connections and restarts of the server.

    Args:
        stub: the stub of the file service.
        header: the header, with size and hash, which the server verifies.
        content: the content.
        patience: the seconds without progress after which the client stops retrying.
        on_progress: called after each piece.
    """

    def __init__(
        self,
        stub: "files_service_pb2_grpc.FileServiceAsyncStub",
        header: files_service_pb2.UploadFileHeader,
        content: Content,
        patience: float,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._stub = stub
        self._header = header
        self._content = content
        self._patience = Patience(patience)
        self._on_progress = on_progress or (lambda _sent, _size: None)
        self._upload_id = ""
        self._unread: Exception | None = None

    async def run(self, request_id: str) -> files_service_pb2.UploadFileResponse:
        """Sends the content and returns the stored file.

        A cancelled or refused upload leaves nothing on the server.

        Raises:
            MnemeshError: the upload was refused, or the server did not answer within the patience.
        """
        try:
            if self._content.size <= PART_BYTES:
                return await self._send_whole(request_id)
            return await self._send_parts(request_id)
        except InvalidArgument as error:
            if error.field in ("header.size_bytes", "header.sha256") and not await self._content.is_unchanged():
                raise self._content.changed() from error
            raise

    async def _send_whole(self, request_id: str) -> files_service_pb2.UploadFileResponse:
        while True:
            try:
                return await self._stub.UploadFile(self._whole(request_id), timeout=_seconds(self._content.size))
            except MnemeshError as error:
                self._raise_unread()
                await self._patience.wait(error)

    async def _whole(self, request_id: str) -> AsyncIterator[files_service_pb2.UploadFileRequest]:
        yield files_service_pb2.UploadFileRequest(request_id=request_id, header=self._header)
        async for piece in self._pieces(0, self._content.size):
            yield files_service_pb2.UploadFileRequest(data=piece)

    async def _pieces(self, offset: int, end: int) -> AsyncIterator[bytes]:
        """Yields the content from an offset to an end. If that fails, ends early and remembers the error.

        gRPC would turn an error of the iterator into a cancellation of the caller.
        """
        try:
            async for piece in self._content.pieces(offset, end):
                yield piece
                offset += len(piece)
                self._on_progress(offset, self._content.size)
        except Exception as error:
            self._unread = error

    def _raise_unread(self) -> None:
        if self._unread is not None:
            raise self._unread

    async def _send_parts(self, request_id: str) -> files_service_pb2.UploadFileResponse:
        try:
            received = await self._start(request_id)
            while received < self._content.size:
                received = await self._write(received)
            return await self._finish(request_id)
        except BaseException:
            await self._cancel()
            raise

    async def _start(self, request_id: str) -> int:
        """Starts the upload, and returns the offset at which it begins."""
        request = files_service_pb2.StartUploadRequest(request_id=f"{request_id}/start", header=self._header)
        while True:
            try:
                upload = (await self._stub.StartUpload(request)).upload
            except MnemeshError as error:
                await self._patience.wait(error)
            else:
                self._upload_id = upload.id
                return upload.received_bytes

    async def _write(self, offset: int) -> int:
        """Sends one part. Returns the number of bytes that the server has."""
        end = min(offset + PART_BYTES, self._content.size)
        try:
            response = await self._stub.WriteUpload(self._part(offset, end), timeout=_seconds(end - offset))
            self._raise_unread()
        except FailedPrecondition as error:
            if "offset" not in error.metadata:
                raise
            return await self._ask_received()  # The server lost data after a crash, for example.
        except MnemeshError as error:
            self._raise_unread()
            await self._patience.wait(error)
            received = await self._ask_received()
            if received > offset:
                self._patience.progressed()
            return received
        self._patience.progressed()
        return response.upload.received_bytes

    async def _part(self, offset: int, end: int) -> AsyncIterator[files_service_pb2.WriteUploadRequest]:
        yield files_service_pb2.WriteUploadRequest(upload_id=self._upload_id, offset=offset)
        async for piece in self._pieces(offset, end):
            yield files_service_pb2.WriteUploadRequest(data=piece)

    async def _ask_received(self) -> int:
        request = files_service_pb2.GetUploadRequest(upload_id=self._upload_id)
        while True:
            try:
                return (await self._stub.GetUpload(request)).upload.received_bytes
            except MnemeshError as error:
                await self._patience.wait(error)

    async def _finish(self, request_id: str) -> files_service_pb2.UploadFileResponse:
        request = files_service_pb2.FinishUploadRequest(request_id=f"{request_id}/finish", upload_id=self._upload_id)
        seconds = _BASE_SECONDS + self._content.size / _HASHING_BYTES_PER_SECOND
        while True:
            try:
                finished = await self._stub.FinishUpload(request, timeout=seconds)
                return files_service_pb2.UploadFileResponse(file=finished.file, outcome=finished.outcome)
            except MnemeshError as error:
                await self._patience.wait(error)

    async def _cancel(self) -> None:
        """Discards what the server has. Without an answer, the server does it after a day."""
        if self._upload_id:
            with suppress(MnemeshError):
                request = files_service_pb2.CancelUploadRequest(upload_id=self._upload_id)
                await self._stub.CancelUpload(request, timeout=_CANCELLATION_SECONDS)


def _seconds(size: int) -> float:
    """Returns the deadline of a call that sends so many bytes."""
    return _BASE_SECONDS + size / _SLOWEST_BYTES_PER_SECOND


async def download(
    stub: "files_service_pb2_grpc.FileServiceAsyncStub",
    file_id: str,
    target: Path,
    patience: float,
    on_progress: OnProgress | None = None,
    *,
    overwrite: bool = False,
) -> files_pb2.File:
    """Writes the content of a file to a path, after its hash was verified. Returns the file.

    The new file is readable by its owner only. On an error, the path is unchanged.

    Raises:
        FailedPrecondition: the path exists, and `overwrite` is not set.
        InvalidArgument: the path cannot be written.
        Internal: the content does not have the hash of the file.
    """
    if not overwrite and await in_thread(target.exists):
        raise FailedPrecondition(f"{target} exists. Choose another path, or overwrite it.")
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise InvalidArgument(f"{target.parent} cannot be written: {error.strerror}.", field="path") from error
    try:
        with os.fdopen(descriptor, "w+b") as copy:
            file = await _Download(stub, file_id, copy, on_progress).run(patience)
            copy.flush()
            os.fsync(copy.fileno())
        await in_thread(os.replace, part, target)
    except OSError as error:
        raise InvalidArgument(f"{target} cannot be written: {error.strerror}.", field="path") from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)  # noqa: PTH108
    return file


async def read(stub: "files_service_pb2_grpc.FileServiceAsyncStub", file_id: str, patience: float) -> bytes:
    """Returns the content of a file, after its hash was verified."""
    with tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES) as copy:
        await _Download(stub, file_id, copy).run(patience)
        copy.seek(0)
        return copy.read()


class _Download:
    """The content of one file, as far as it has arrived."""

    def __init__(
        self,
        stub: "files_service_pb2_grpc.FileServiceAsyncStub",
        file_id: str,
        copy: IO[bytes],
        on_progress: OnProgress | None = None,
    ) -> None:
        self._stub = stub
        self._file_id = file_id
        self._copy = copy
        self._on_progress = on_progress or (lambda _received, _size: None)
        self._begin()

    def _begin(self, file: files_pb2.File | None = None) -> None:
        self._file, self._offset, self._digest = file, 0, hashlib.sha256()
        self._copy.seek(0)
        self._copy.truncate()

    async def run(self, patience: float) -> files_pb2.File:
        """Receives all of it, and verifies the hash. Returns the file."""
        left = Patience(patience)
        while True:
            before = self._offset
            try:
                await self._receive()
                if self._file is not None and self._offset >= self._file.size_bytes:
                    break
                raise Unavailable("The download ended before the file did.")
            except MnemeshError as error:
                if self._offset > before:
                    left.progressed()
                await left.wait(error)
        if (self._offset, self._digest.hexdigest()) != (self._file.size_bytes, self._file.sha256):
            raise Internal(f"The content of {self._file.name} does not have its hash. Download it again.")
        return self._file

    async def _receive(self) -> None:
        """Receives what one call sends. If the content was replaced since the last call, begins again."""
        request = files_service_pb2.GetFileContentRequest(file_id=self._file_id, offset=self._offset)
        async with closing(self._stub.GetFileContent(request)) as responses:
            async for response in responses:
                if response.HasField("file"):
                    if self._file is None or response.file.revision != self._file.revision:
                        is_complete = self._offset == 0
                        self._begin(response.file)
                        if not is_complete:
                            return
                    continue
                self._copy.write(response.data)
                self._digest.update(response.data)
                self._offset += len(response.data)
                if self._file is not None:
                    self._on_progress(self._offset, self._file.size_bytes)
