"""Downloads: to a file that is complete or absent, continued after a broken connection."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from mnemesh.files.v1 import files_pb2, files_service_pb2, files_service_pb2_grpc
from mnemesh_kit.errors import FailedPrecondition, Internal, InvalidArgument, MnemeshError, Unavailable

from mnemesh_client.patience import Patience
from mnemesh_client.transport import closing, in_thread
from mnemesh_client.uploads import OnProgress

_MEMORY_BYTES: Final = 8_000_000


async def download(
    stub: files_service_pb2_grpc.FileServiceAsyncStub,
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


async def read(stub: files_service_pb2_grpc.FileServiceAsyncStub, file_id: str, patience: float) -> bytes:
    """Returns the content of a file, after its hash was verified."""
    with tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES) as copy:
        await _Download(stub, file_id, copy).run(patience)
        copy.seek(0)
        return copy.read()


class _Download:
    """The content of one file, as far as it has arrived."""

    def __init__(
        self,
        stub: files_service_pb2_grpc.FileServiceAsyncStub,
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
