"""Uploads: in one call for small files, in resumable parts for others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from mnemesh.files.v1 import files_service_pb2, files_service_pb2_grpc
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument, MnemeshError

from mnemesh_client.patience import Patience
from mnemesh_client.upload_sources import Content

OnProgress = Callable[[int, int], None]
"""Receives the number of bytes that were sent, and the size of the file."""

PART_BYTES: Final = 8_000_000
"""The size of the largest file that is sent in one call, and of the parts of others."""
_BASE_SECONDS: Final = 60.0
_SLOWEST_BYTES_PER_SECOND: Final = 50_000
_CANCELLATION_SECONDS: Final = 3.0
_HASHING_BYTES_PER_SECOND: Final = 20_000_000


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
        stub: files_service_pb2_grpc.FileServiceAsyncStub,
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
            return await self._received()  # The server lost data after a crash, for example.
        except MnemeshError as error:
            self._raise_unread()
            await self._patience.wait(error)
            received = await self._received()
            if received > offset:
                self._patience.progressed()
            return received
        self._patience.progressed()
        return response.upload.received_bytes

    async def _part(self, offset: int, end: int) -> AsyncIterator[files_service_pb2.WriteUploadRequest]:
        yield files_service_pb2.WriteUploadRequest(upload_id=self._upload_id, offset=offset)
        async for piece in self._pieces(offset, end):
            yield files_service_pb2.WriteUploadRequest(data=piece)

    async def _received(self) -> int:
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
