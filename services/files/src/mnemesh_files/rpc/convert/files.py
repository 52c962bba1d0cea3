"""Conversions of folders, files and streams of their content."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from mnemesh.files.v1 import files_pb2, files_service_pb2, folders_service_pb2
from mnemesh.files.v1 import files_service_pb2 as pb
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto, timestamp_to_proto

from mnemesh_files.model.files import (
    CLIENT_PROVENANCE,
    PROVENANCE,
    DuplicateHandling,
    File,
    FileFilter,
    FileHeader,
    FileOrder,
    FileStatus,
    Provenance,
    TextPart,
    Upload,
    UploadOutcome,
)
from mnemesh_files.model.folders import Folder, FolderDraft, FolderFilter, FolderOrder

T = TypeVar("T")

FOLDER: Final = "source"
"""The prefix of the ids of folders."""

_FOLDER_ORDERS: Final = {
    folders_service_pb2.FOLDER_ORDER_BY_UNSPECIFIED: FolderOrder.CREATED,
    folders_service_pb2.FOLDER_ORDER_BY_CREATE_TIME: FolderOrder.CREATED,
    folders_service_pb2.FOLDER_ORDER_BY_UPDATE_TIME: FolderOrder.UPDATED,
    folders_service_pb2.FOLDER_ORDER_BY_NAME: FolderOrder.NAME,
}

_FILE_ORDERS: Final = {
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
_OUTCOMES: Final = {
    UploadOutcome.CREATED: files_service_pb2.UPLOAD_OUTCOME_CREATED,
    UploadOutcome.SKIPPED: files_service_pb2.UPLOAD_OUTCOME_SKIPPED,
    UploadOutcome.REPLACED: files_service_pb2.UPLOAD_OUTCOME_REPLACED,
}

MAX_PIECE_BYTES: Final = 1 << 20


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def enum_from_proto(values: Mapping[Any, T], number: int, field: str) -> T:
    """Returns the model's value of an enum's number. Raises InvalidArgument if the number is unknown."""
    if number not in values:
        raise InvalidArgument(f"{field} has the unknown value {number}.", field=field)
    return values[number]


def folder_id_from_proto(value: str, field: str = "folder_id") -> str:
    """Returns a folder id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, FOLDER, field)


def file_id_from_proto(value: str, field: str = "file_id") -> str:
    """Returns a file id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "file", field)


def upload_id_from_proto(value: str, field: str = "upload_id") -> str:
    """Returns the id of an upload. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "upload", field)


def agent_id_from_proto(value: str, field: str = "agent_id") -> str:
    """Returns an agent id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "agent", field)


def provenance_to_proto(provenance: Provenance) -> audit_pb2.Provenance:
    """Returns authorship as a message."""
    return audit_pb2.Provenance(**{name: getattr(provenance, name) for name in PROVENANCE})


def provenance_from_proto(message: audit_pb2.Provenance) -> Provenance:
    """Returns the ids that clients set."""
    return Provenance(**{name: optional_field(message, name) for name in CLIENT_PROVENANCE})


def folder_to_proto(folder: Folder) -> files_pb2.Folder:
    """Returns a folder as a message."""
    return files_pb2.Folder(
        id=folder.id,
        name=folder.name,
        description=folder.description,
        instructions=folder.instructions,
        metadata=folder.metadata,
        embedder=folder.embedder,
        chunk_size=folder.chunk_size,
        archive_id=folder.archive_id,
        file_count=folder.file_count,
        size_bytes=folder.size_bytes,
        create_time=timestamp_to_proto(folder.created_at),
        update_time=timestamp_to_proto(folder.updated_at),
        provenance=provenance_to_proto(folder.provenance),
    )


def folder_draft_from_proto(message: files_pb2.Folder) -> FolderDraft:
    """Returns the fields of a folder that callers set."""
    return FolderDraft(
        name=message.name,
        description=optional_field(message, "description"),
        instructions=optional_field(message, "instructions"),
        metadata=optional_field(message, "metadata"),
        embedder=message.embedder,
        chunk_size=message.chunk_size,
        provenance=provenance_from_proto(message.provenance),
    )


def folder_filter_from_proto(message: folders_service_pb2.FolderFilter) -> FolderFilter:
    """Returns a filter of folders. Raises InvalidArgument for an id that is not well-formed."""
    agent_id = optional_field(message, "agent_id")
    return FolderFilter(
        folder_ids=tuple(folder_id_from_proto(value, "filter.folder_ids") for value in message.folder_ids),
        name=optional_field(message, "name"),
        name_search=optional_field(message, "name_search"),
        agent_id=None if agent_id is None else agent_id_from_proto(agent_id, "filter.agent_id"),
        project_id=optional_field(message, "project_id"),
        template_id=optional_field(message, "template_id"),
    )


def folder_order_from_proto(number: int) -> FolderOrder:
    """Returns the order of a list of folders. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_FOLDER_ORDERS, number, "order_by")


def require_agent_order(order_by: int) -> None:
    """Raises InvalidArgument if the order of a folder's agents is unknown."""
    if order_by not in folders_service_pb2.FolderAgentOrderBy.values():
        raise InvalidArgument("order_by is not a known order.", field="order_by")


_STATUS_NUMBERS: Final = {status: number for number, status in _STATUSES.items()}


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
    return enum_from_proto(_FILE_ORDERS, number, "order_by")


def file_status_to_proto(status: FileStatus) -> files_pb2.FileStatus.ValueType:
    """Returns the enum value of a status."""
    return _STATUS_NUMBERS[status]


def outcome_to_proto(outcome: UploadOutcome) -> files_service_pb2.UploadOutcome.ValueType:
    """Returns the enum value of what an upload did."""
    return _OUTCOMES[outcome]


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
