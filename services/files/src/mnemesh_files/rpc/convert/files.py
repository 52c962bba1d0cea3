"""Conversions of folders, files and streams of their content."""

from collections.abc import AsyncIterator
from typing import Final

from mnemesh.files.v1 import files_pb2, files_service_pb2, folders_service_pb2
from mnemesh.files.v1 import files_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_types.files import FileFilter, FileHeader, FolderFilter
from mnemesh_types.twin import enum_of

from mnemesh_files.model.files import FileOrder, TextPart
from mnemesh_files.model.folders import FolderOrder

enum_of(folders_service_pb2.FolderOrderBy, FolderOrder, "CREATED", CREATED="CREATE_TIME", UPDATED="UPDATE_TIME")
enum_of(files_service_pb2.FileOrderBy, FileOrder, "CREATED", CREATED="CREATE_TIME", UPDATED="UPDATE_TIME")
MAX_PIECE_BYTES: Final = 1 << 20


def folder_filter_from_proto(message: folders_service_pb2.FolderFilter) -> FolderFilter:
    """Returns a filter of folders. Raises InvalidArgument for an id that is not well-formed."""
    require_ids(message, "filter", folder_ids="source", agent_id="agent")
    return FolderFilter.from_proto(message, "filter")


def file_header_from_proto(message: files_service_pb2.UploadFileHeader) -> FileHeader:
    """Returns the header of an upload. Raises InvalidArgument for an id, a time or an enum that is not well-formed."""
    require_id(message.folder_id, "source", "header.folder_id")
    return FileHeader.from_proto(message, "header")


def text_to_proto(part: TextPart, wanted_last: int | None) -> files_service_pb2.GetFileTextResponse:
    """Returns lines of a text as a response; `wanted_last` is the last line that was asked for, None for all."""
    has_more = bool(part.lines) and min(part.total, wanted_last or part.total) > part.last
    view = files_pb2.FileView(total_lines=part.total)
    if part.lines:
        view.start_line, view.end_line = part.first, part.last
        start_page, end_page = part.page(part.first), part.page(part.last)
        if start_page is not None and end_page is not None:
            view.start_page, view.end_page = start_page, end_page
    return files_service_pb2.GetFileTextResponse(
        text="\n".join(part.lines), view=view, next_offset=part.last if has_more else None
    )


def file_filter_from_proto(message: files_service_pb2.FileFilter) -> FileFilter:
    """Returns a filter of files. Raises InvalidArgument for an id or a status that is not well-formed."""
    require_ids(message, "filter", file_ids="file", folder_id="source", agent_id="agent")
    return FileFilter.from_proto(message, "filter")


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
    return require_id(first.upload_id, "upload", "upload_id"), first.offset, _written(first, requests)


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
