"""Conversion of requests, files and folders."""

from collections.abc import AsyncIterator, Mapping
from typing import Final

from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2, files_service_pb2, folders_service_pb2
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as service_pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.text import require_line, require_no_nul
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.files import FileFilter, FileHeader, FileLimits, FolderFilter
from mnemesh_types.twin import Conversion, enum_of, number_of

from mnemesh_files.model.agent_files import (
    AgentFileFilter,
    AgentFileOrder,
    Directories,
    FileReference,
    FileRequest,
    HeldFile,
    ShownFile,
    view_of,
)
from mnemesh_files.model.file_search import DEFAULT_CONTEXT_LINES, GrepQuery, GrepResult
from mnemesh_files.model.files import FileOrder, FolderOrder, TextPart

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
    requests: AsyncIterator[service_pb.UploadFileRequest],
) -> tuple[FileHeader, RequestKey | None, AsyncIterator[bytes]]:
    """Returns the header and the key of an upload, and its data, which is still being received.

    Raises:
        InvalidArgument: the first message has no header, or an invalid one.
    """
    first = await anext(requests, None)
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidArgument("The first message must have the header.", field="header")
    return file_header_from_proto(first.header), request_key(first, "UploadFile"), _data(requests)


async def _data(requests: AsyncIterator[service_pb.UploadFileRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "data" or request.request_id:
            raise InvalidArgument("Every message after the first must have data and nothing else.", field="data")
        yield piece_from_proto(request.data)


async def written_data_from_proto(
    requests: AsyncIterator[service_pb.WriteUploadRequest],
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
    first: service_pb.WriteUploadRequest, requests: AsyncIterator[service_pb.WriteUploadRequest]
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


MAX_REFERENCE_CHARACTERS: Final = 600
enum_of(rpc.AgentFileOrderBy, AgentFileOrder, "ATTACHED", ATTACHED="CREATE_TIME", USED="LAST_ACCESS_TIME")
_REQUEST: Final = Conversion(rpc.FileRequest, FileRequest, file=None)
_FILTER: Final = Conversion(rpc.ListAgentFilesRequest, AgentFileFilter)
_FILE: Final = Conversion(
    pb.AgentFile, HeldFile, create_time="attached_at", last_access_time="used_at", view=None, update_time=None
)
GREP_RESULT: Final = Conversion(rpc.GrepFilesResponse, GrepResult, total_matches="total")
"""The result of a search by pattern."""


def reference_from_proto(message: rpc.FileReference, field: str) -> FileReference:
    """Returns a reference to a file. Raises InvalidArgument if it names none."""
    if message.WhichOneof("file") == "file_id":
        return FileReference(file_id=require_id(message.file_id, "file", f"{field}.file_id"))
    return FileReference(name=require_line(message.name, f"{field}.name", max_chars=MAX_REFERENCE_CHARACTERS))


def file_request_from_proto(message: rpc.FileRequest, field: str) -> FileRequest:
    """Returns a request for a window. Raises InvalidArgument."""
    return _REQUEST.from_proto(message, field, file=reference_from_proto(message.file, f"{field}.file"))


def limits_from_proto(request: rpc.SetFileLimitsRequest) -> FileLimits | None:
    """Returns the limits of a request; None removes those of the agent."""
    if not request.HasField("limits"):
        return None
    return FileLimits.from_proto(request.limits, "limits")


def filter_from_proto(request: rpc.ListAgentFilesRequest) -> AgentFileFilter:
    """Returns the filter of a list of files. Raises InvalidArgument."""
    if request.HasField("folder_id"):
        require_id(request.folder_id, "source", "folder_id")
    return _FILTER.from_proto(request)


def agent_file_to_proto(shown: ShownFile, *, with_text: bool) -> pb.AgentFile:
    """Returns a file of an agent as a message."""
    file = shown.file
    return _FILE.to_proto(
        file,
        view=None if shown.view is None else shown.view.to_proto(),
        visible_content=shown.text if with_text and file.is_open else None,
        truncated=shown.truncated,
        update_time=timestamp_to_proto(max(file.attached_at, file.updated_at or file.attached_at)),
    )


def directories_to_proto(directories: Directories, opened: Mapping[str, ShownFile]) -> pb.Directories:
    """Returns directories with their open files as a message."""
    return pb.Directories(
        agent_id=directories.agent_id,
        revision=directories.revision,
        directories=[
            pb.Directory(
                folder_id=held.folder.id,
                name=held.folder.name,
                description=held.folder.description,
                instructions=held.folder.instructions,
                files=[_directory_file(file, opened.get(file.file_id)) for file in held.files],
                file_count=held.folder.file_count,
            )
            for held in directories.folders
        ],
        limits=directories.limits.to_proto(),
        open_files=directories.open_files,
        update_time=optional_timestamp_to_proto(directories.changed_at),
    )


def _directory_file(file: HeldFile, shown: ShownFile | None) -> pb.DirectoryFile:
    view = None if file.window is None else view_of(file.window, file.total_lines, file.page_starts)
    return pb.DirectoryFile(
        file_id=file.file_id,
        name=file.name,
        is_open=file.is_open,
        view=None if view is None else view.to_proto(),
        value=shown.text if shown is not None else "",
        truncated=shown is not None and shown.truncated,
        status=number_of(file.status),
    )


def grep_query_from_proto(request: rpc.GrepFilesRequest) -> GrepQuery:
    """Returns a search by pattern. Raises InvalidArgument if a text contains NUL characters."""
    return GrepQuery(
        require_no_nul(request.pattern, "pattern"),
        require_no_nul(request.include, "include") if request.HasField("include") else None,
        request.context_lines if request.HasField("context_lines") else DEFAULT_CONTEXT_LINES,
        request.offset,
        request.limit,
    )
