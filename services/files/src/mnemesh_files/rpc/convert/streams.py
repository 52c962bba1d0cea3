"""Decoding of the streams of uploads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from mnemesh.files.v1 import files_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey, request_key

from mnemesh_files.model.files import FileHeader
from mnemesh_files.rpc.convert.fields import upload_id_from_proto
from mnemesh_files.rpc.convert.files import file_header_from_proto

MAX_PIECE_BYTES: Final = 1 << 20


async def upload_from_proto(
    requests: AsyncIterator[pb.UploadFileRequest],
) -> tuple[FileHeader, RequestKey | None, AsyncIterator[bytes]]:
    """Returns the header and the key of an upload, and its data, which is still being received.

    Raises:
        InvalidArgument: the first message has no header, or an invalid one.
    """
    first = await anext(requests, None)
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidArgument("The first message must have the header.", field="header")
    return file_header_from_proto(first.header), request_key(first, "UploadFile"), _data(requests)


async def _data(requests: AsyncIterator[pb.UploadFileRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "data" or request.request_id:
            raise InvalidArgument("Every message after the first must have data and nothing else.", field="data")
        yield piece_from_proto(request.data)


async def written_data_from_proto(
    requests: AsyncIterator[pb.WriteUploadRequest],
) -> tuple[str, int, AsyncIterator[bytes]]:
    """Returns the upload, the offset and the data of a stream, which is still being received.

    Raises:
        InvalidArgument: there is no message, or the id is not well-formed.
    """
    first = await anext(requests, None)
    if first is None:
        raise InvalidArgument("The first message must have upload_id.", field="upload_id")
    return upload_id_from_proto(first.upload_id), first.offset, _written(first, requests)


async def _written(
    first: pb.WriteUploadRequest, requests: AsyncIterator[pb.WriteUploadRequest]
) -> AsyncIterator[bytes]:
    yield piece_from_proto(first.data)
    async for request in requests:
        if request.upload_id or request.offset:
            raise InvalidArgument("Every message after the first must have data and nothing else.", field="data")
        yield piece_from_proto(request.data)


def piece_from_proto(data: bytes) -> bytes:
    """Returns the data of a message. Raises InvalidArgument if it is too large."""
    if len(data) > MAX_PIECE_BYTES:
        raise InvalidArgument(f"data must be at most {MAX_PIECE_BYTES:,} bytes.", field="data")
    return data
