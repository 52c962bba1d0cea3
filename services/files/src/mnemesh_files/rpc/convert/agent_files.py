"""Conversions of the files of agents, and of searches in them."""

from collections.abc import Mapping
from typing import Final

from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_line, require_no_nul
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.files import FileLimits
from mnemesh_types.twin import enum_of, number_of

from mnemesh_files.model.agent_files import (
    AgentFileFilter,
    AgentFileOrder,
    Directories,
    FileReference,
    FileRequest,
    HeldFile,
    ShownFile,
)
from mnemesh_files.model.file_search import DEFAULT_CONTEXT_LINES, GrepQuery, GrepResult
from mnemesh_files.model.windows import view_of

MAX_REFERENCE_CHARACTERS: Final = 600
enum_of(rpc.AgentFileOrderBy, AgentFileOrder, "ATTACHED", ATTACHED="CREATE_TIME", USED="LAST_ACCESS_TIME")


def reference_from_proto(message: rpc.FileReference, field: str) -> FileReference:
    """Returns a reference to a file. Raises InvalidArgument if it names none."""
    if message.WhichOneof("file") == "file_id":
        return FileReference(file_id=require_id(message.file_id, "file", f"{field}.file_id"))
    return FileReference(name=require_line(message.name, f"{field}.name", max_chars=MAX_REFERENCE_CHARACTERS))


def file_request_from_proto(message: rpc.FileRequest, field: str) -> FileRequest:
    """Returns a request for a window. Raises InvalidArgument."""
    return FileRequest(
        reference_from_proto(message.file, f"{field}.file"),
        message.offset if message.HasField("offset") else None,
        message.length if message.HasField("length") else None,
    )


def limits_from_proto(request: rpc.SetFileLimitsRequest) -> FileLimits | None:
    """Returns the limits of a request; None removes those of the agent."""
    if not request.HasField("limits"):
        return None
    return FileLimits.from_proto(request.limits, "limits")


def filter_from_proto(request: rpc.ListAgentFilesRequest) -> AgentFileFilter:
    """Returns the filter of a list of files. Raises InvalidArgument."""
    return AgentFileFilter(
        require_id(request.folder_id, "source", "folder_id") if request.HasField("folder_id") else None,
        request.is_open if request.HasField("is_open") else None,
    )


def agent_file_to_proto(shown: ShownFile, *, with_text: bool) -> pb.AgentFile:
    """Returns a file of an agent as a message."""
    file = shown.file
    return pb.AgentFile(
        agent_id=file.agent_id,
        file_id=file.file_id,
        folder_id=file.folder_id,
        name=file.name,
        is_open=file.is_open,
        view=None if shown.view is None else shown.view.to_proto(),
        visible_content=shown.text if with_text and file.is_open else None,
        truncated=shown.truncated,
        status=number_of(file.status),
        last_access_time=optional_timestamp_to_proto(file.used_at),
        media_type=file.media_type,
        size_bytes=file.size_bytes,
        create_time=timestamp_to_proto(file.attached_at),
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


def grep_result_to_proto(result: GrepResult) -> rpc.GrepFilesResponse:
    """Returns the result of a search by pattern as a message."""
    return rpc.GrepFilesResponse(
        matches=[match.to_proto() for match in result.matches],
        total_matches=result.total,
        files=[file.to_proto() for file in result.files],
        files_searched=result.files_searched,
        skipped=[file.to_proto() for file in result.skipped],
        capped=result.capped,
        timed_out=result.timed_out,
        next_offset=result.next_offset,
    )
