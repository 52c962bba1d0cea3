"""Conversions of the files of agents, and of searches in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_line, require_no_nul
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto

from mnemesh_files.model.agent_files import (
    AgentFileFilter,
    AgentFileOrder,
    Directories,
    FileReference,
    FileRequest,
    HeldFile,
    ShownFile,
)
from mnemesh_files.model.file_search import (
    DEFAULT_CONTEXT_LINES,
    FileHit,
    GrepQuery,
    GrepResult,
    ResolvedCitation,
    SkipCause,
    SkippedFile,
)
from mnemesh_files.model.files import FileStatus
from mnemesh_files.model.windows import FileLimits, FileView, view_of
from mnemesh_files.rpc.convert.files import file_id_from_proto, folder_id_from_proto

MAX_REFERENCE_CHARACTERS: Final = 600
_ORDERS: Final[Mapping[int, AgentFileOrder]] = {
    rpc.AGENT_FILE_ORDER_BY_UNSPECIFIED: AgentFileOrder.ATTACHED,
    rpc.AGENT_FILE_ORDER_BY_CREATE_TIME: AgentFileOrder.ATTACHED,
    rpc.AGENT_FILE_ORDER_BY_LAST_ACCESS_TIME: AgentFileOrder.USED,
    rpc.AGENT_FILE_ORDER_BY_NAME: AgentFileOrder.NAME,
}


_STATUSES: Final = {status: pb.FileStatus.Value(f"FILE_STATUS_{status.name}") for status in FileStatus}


def reference_from_proto(message: rpc.FileReference, field: str) -> FileReference:
    """Returns a reference to a file. Raises InvalidArgument if it names none."""
    if message.WhichOneof("file") == "file_id":
        return FileReference(file_id=file_id_from_proto(message.file_id, f"{field}.file_id"))
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
    return FileLimits(request.limits.max_files_open, request.limits.per_file_view_window_char_limit)


def filter_from_proto(request: rpc.ListAgentFilesRequest) -> AgentFileFilter:
    """Returns the filter of a list of files. Raises InvalidArgument."""
    return AgentFileFilter(
        folder_id_from_proto(request.folder_id) if request.HasField("folder_id") else None,
        request.is_open if request.HasField("is_open") else None,
    )


def file_order_from_proto(order_by: int) -> AgentFileOrder:
    """Returns the order of a list of files. Raises InvalidArgument."""
    order = _ORDERS.get(order_by)
    if order is None:
        raise InvalidArgument("order_by is not a known order.", field="order_by")
    return order


def folders_by_name(order_by: int) -> bool:
    """Returns whether a list of folders is by name, or else by time of attachment. Raises InvalidArgument."""
    if order_by not in rpc.AgentFolderOrderBy.values():
        raise InvalidArgument("order_by is not a known order.", field="order_by")
    return order_by == rpc.AGENT_FOLDER_ORDER_BY_NAME


def limits_to_proto(limits: FileLimits) -> pb.FileLimits:
    """Returns limits as a message."""
    return pb.FileLimits(
        max_files_open=limits.max_files_open,
        per_file_view_window_char_limit=limits.per_file_view_window_char_limit,
    )


def view_to_proto(view: FileView | None) -> pb.FileView | None:
    """Returns a view as a message."""
    if view is None:
        return None
    return pb.FileView(
        start_line=view.start_line,
        end_line=view.end_line,
        total_lines=view.total_lines,
        start_page=view.start_page,
        end_page=view.end_page,
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
        view=view_to_proto(shown.view),
        visible_content=shown.text if with_text and file.is_open else None,
        truncated=shown.truncated,
        status=_STATUSES[file.status],
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
        limits=limits_to_proto(directories.limits),
        open_files=directories.open_files,
        update_time=optional_timestamp_to_proto(directories.changed_at),
    )


def _directory_file(file: HeldFile, shown: ShownFile | None) -> pb.DirectoryFile:
    view = None if file.window is None else view_of(file.window, file.total_lines, file.page_starts)
    return pb.DirectoryFile(
        file_id=file.file_id,
        name=file.name,
        is_open=file.is_open,
        view=view_to_proto(view),
        value=shown.text if shown is not None else "",
        truncated=shown is not None and shown.truncated,
        status=_STATUSES[file.status],
    )


_CAUSES = {cause: rpc.SkipCause.Value(f"SKIP_CAUSE_{cause.name}") for cause in SkipCause}


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
        matches=[
            rpc.GrepMatch(
                file_id=match.file_id,
                file_name=match.file_name,
                line=match.line,
                text=match.text,
                lines_before=match.before,
                lines_after=match.after,
                page=match.page,
            )
            for match in result.matches
        ],
        total_matches=result.total,
        files=[
            rpc.FileMatchCount(file_id=file.file_id, file_name=file.file_name, count=file.count)
            for file in result.files
        ],
        files_searched=result.files_searched,
        skipped=[skipped_to_proto(file) for file in result.skipped],
        capped=result.capped,
        timed_out=result.timed_out,
        next_offset=result.next_offset,
    )


def file_hit_to_proto(hit: FileHit) -> rpc.FileHit:
    """Returns a hit of a search by similarity and words as a message."""
    return rpc.FileHit(
        file_id=hit.file_id,
        file_name=hit.file_name,
        passage_id=hit.passage_id,
        text=hit.text,
        score=hit.score,
        start_line=hit.start_line,
        end_line=hit.end_line,
        start_page=hit.start_page,
        end_page=hit.end_page,
    )


def citation_to_proto(citation: ResolvedCitation) -> rpc.Citation:
    """Returns a citation as a message."""
    return rpc.Citation(
        start=citation.start,
        end=citation.end,
        file_name=citation.file_name,
        file_id=citation.file_id,
        start_line=citation.start_line,
        end_line=citation.end_line,
        start_page=citation.start_page,
        end_page=citation.end_page,
        quote=citation.quote,
    )


def skipped_to_proto(file: SkippedFile) -> rpc.SkippedFile:
    """Returns a file that a search left out as a message."""
    return rpc.SkippedFile(file_id=file.file_id, file_name=file.file_name, cause=_CAUSES[file.cause])
