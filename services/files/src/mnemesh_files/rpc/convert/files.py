"""Conversion of files, the headers of uploads, and filters."""

from __future__ import annotations

from typing import Final

from mnemesh.files.v1 import files_pb2, files_service_pb2
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto, timestamp_to_proto

from mnemesh_files.model.files import (
    DuplicateHandling,
    File,
    FileFilter,
    FileHeader,
    FileOrder,
    FileStatus,
    TextPart,
    UploadOutcome,
)
from mnemesh_files.model.uploads import Upload
from mnemesh_files.rpc.convert.fields import (
    agent_id_from_proto,
    enum_from_proto,
    file_id_from_proto,
    folder_id_from_proto,
    optional_field,
    provenance_to_proto,
)

_ORDERS: Final = {
    files_service_pb2.FILE_ORDER_BY_UNSPECIFIED: FileOrder.CREATED,
    files_service_pb2.FILE_ORDER_BY_CREATE_TIME: FileOrder.CREATED,
    files_service_pb2.FILE_ORDER_BY_UPDATE_TIME: FileOrder.UPDATED,
    files_service_pb2.FILE_ORDER_BY_NAME: FileOrder.NAME,
}
_HANDLINGS: Final = {
    files_service_pb2.DUPLICATE_HANDLING_UNSPECIFIED: DuplicateHandling.SUFFIX,
    files_service_pb2.DUPLICATE_HANDLING_SKIP: DuplicateHandling.SKIP,
    files_service_pb2.DUPLICATE_HANDLING_ERROR: DuplicateHandling.ERROR,
    files_service_pb2.DUPLICATE_HANDLING_SUFFIX: DuplicateHandling.SUFFIX,
    files_service_pb2.DUPLICATE_HANDLING_REPLACE: DuplicateHandling.REPLACE,
}
_HANDLING_NUMBERS: Final = {
    DuplicateHandling.SKIP: files_service_pb2.DUPLICATE_HANDLING_SKIP,
    DuplicateHandling.ERROR: files_service_pb2.DUPLICATE_HANDLING_ERROR,
    DuplicateHandling.SUFFIX: files_service_pb2.DUPLICATE_HANDLING_SUFFIX,
    DuplicateHandling.REPLACE: files_service_pb2.DUPLICATE_HANDLING_REPLACE,
}
_STATUSES: Final = {
    files_pb2.FILE_STATUS_FETCHING: FileStatus.FETCHING,
    files_pb2.FILE_STATUS_PENDING: FileStatus.PENDING,
    files_pb2.FILE_STATUS_PARSING: FileStatus.PARSING,
    files_pb2.FILE_STATUS_EMBEDDING: FileStatus.EMBEDDING,
    files_pb2.FILE_STATUS_COMPLETED: FileStatus.COMPLETED,
    files_pb2.FILE_STATUS_ERROR: FileStatus.ERROR,
}
_STATUS_NUMBERS: Final = {status: number for number, status in _STATUSES.items()}
_OUTCOMES: Final = {
    UploadOutcome.CREATED: files_service_pb2.UPLOAD_OUTCOME_CREATED,
    UploadOutcome.SKIPPED: files_service_pb2.UPLOAD_OUTCOME_SKIPPED,
    UploadOutcome.REPLACED: files_service_pb2.UPLOAD_OUTCOME_REPLACED,
}


def file_to_proto(file: File) -> files_pb2.File:
    """Returns a file as a message."""
    return files_pb2.File(
        id=file.id,
        folder_id=file.folder_id,
        name=file.name,
        original_name=file.original_name,
        media_type=file.media_type,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        status=file_status_to_proto(file.status),
        error_message=file.error_message,
        total_chunks=file.total_chunks,
        chunks_embedded=file.chunks_embedded,
        total_lines=file.total_lines,
        total_chars=file.total_chars,
        path=file.path,
        original_create_time=optional_timestamp_to_proto(file.original_created_at),
        original_update_time=optional_timestamp_to_proto(file.original_updated_at),
        metadata=file.metadata,
        revision=file.revision,
        source_url=file.source_url,
        total_pages=file.total_pages,
        warnings=file.warnings,
        create_time=timestamp_to_proto(file.created_at),
        update_time=timestamp_to_proto(file.updated_at),
        provenance=provenance_to_proto(file.provenance),
    )


def file_header_from_proto(message: files_service_pb2.UploadFileHeader) -> FileHeader:
    """Returns the header of an upload. Raises InvalidArgument for an id, a time or an enum that is not well-formed."""
    return FileHeader(
        folder_id=folder_id_from_proto(message.folder_id, "header.folder_id"),
        original_name=message.original_name,
        name=optional_field(message, "name"),
        media_type=optional_field(message, "media_type"),
        duplicate_handling=enum_from_proto(_HANDLINGS, message.duplicate_handling, "header.duplicate_handling"),
        size_bytes=optional_field(message, "size_bytes"),
        sha256=optional_field(message, "sha256"),
        path=optional_field(message, "path"),
        original_created_at=optional_timestamp_from_proto(
            message, "original_create_time", "header.original_create_time"
        ),
        original_updated_at=optional_timestamp_from_proto(
            message, "original_update_time", "header.original_update_time"
        ),
        metadata=optional_field(message, "metadata"),
    )


def file_header_to_proto(header: FileHeader) -> files_service_pb2.UploadFileHeader:
    """Returns the header of an upload as a message."""
    return files_service_pb2.UploadFileHeader(
        folder_id=header.folder_id,
        original_name=header.original_name,
        name=header.name,
        media_type=header.media_type,
        duplicate_handling=_HANDLING_NUMBERS[header.duplicate_handling],
        size_bytes=header.size_bytes,
        sha256=header.sha256,
        path=header.path,
        original_create_time=optional_timestamp_to_proto(header.original_created_at),
        original_update_time=optional_timestamp_to_proto(header.original_updated_at),
        metadata=header.metadata,
    )


def upload_to_proto(upload: Upload) -> files_service_pb2.Upload:
    """Returns an unfinished upload as a message."""
    return files_service_pb2.Upload(
        id=upload.id,
        header=file_header_to_proto(upload.header),
        received_bytes=upload.received_bytes,
        create_time=timestamp_to_proto(upload.created_at),
        expire_time=timestamp_to_proto(upload.expires_at),
    )


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
    folder_id, agent_id = optional_field(message, "folder_id"), optional_field(message, "agent_id")
    return FileFilter(
        file_ids=tuple(file_id_from_proto(value, "filter.file_ids") for value in message.file_ids),
        folder_id=None if folder_id is None else folder_id_from_proto(folder_id, "filter.folder_id"),
        name=optional_field(message, "name"),
        name_search=optional_field(message, "name_search"),
        statuses=tuple(enum_from_proto(_STATUSES, number, "filter.statuses") for number in message.statuses),
        agent_id=None if agent_id is None else agent_id_from_proto(agent_id, "filter.agent_id"),
    )


def file_order_from_proto(number: int) -> FileOrder:
    """Returns the order of a list of files. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDERS, number, "order_by")


def file_status_to_proto(status: FileStatus) -> files_pb2.FileStatus.ValueType:
    """Returns the enum value of a status."""
    return _STATUS_NUMBERS[status]


def outcome_to_proto(outcome: UploadOutcome) -> files_service_pb2.UploadOutcome.ValueType:
    """Returns the enum value of what an upload did."""
    return _OUTCOMES[outcome]
