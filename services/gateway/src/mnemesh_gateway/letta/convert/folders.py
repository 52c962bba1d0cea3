"""Folders and files of the contract and of Letta's API."""

from __future__ import annotations

from typing import Final

from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh.files.v1 import folders_service_pb2 as folders_rpc

from mnemesh_gateway.letta.convert.models import given_embedder
from mnemesh_gateway.letta.convert.values import json_to_text, moment, present, set_present
from mnemesh_gateway.letta.schemas.folders import CreateFolder, File, FolderSize, Job, UpdateFolder

_STATUSES: Final = {
    pb.FILE_STATUS_PARSING: "parsing",
    pb.FILE_STATUS_EMBEDDING: "embedding",
    pb.FILE_STATUS_COMPLETED: "completed",
    pb.FILE_STATUS_ERROR: "error",
}
_JOB_STATUSES: Final = {
    pb.FILE_STATUS_FETCHING: "running",
    pb.FILE_STATUS_PARSING: "running",
    pb.FILE_STATUS_EMBEDDING: "running",
    pb.FILE_STATUS_COMPLETED: "completed",
    pb.FILE_STATUS_ERROR: "failed",
}
RUNNING: Final = (
    pb.FILE_STATUS_PENDING,
    pb.FILE_STATUS_FETCHING,
    pb.FILE_STATUS_PARSING,
    pb.FILE_STATUS_EMBEDDING,
)
"""The states of files whose jobs have not ended."""
DUPLICATES: Final = {
    "skip": rpc.DUPLICATE_HANDLING_SKIP,
    "error": rpc.DUPLICATE_HANDLING_ERROR,
    "suffix": rpc.DUPLICATE_HANDLING_SUFFIX,
    "replace": rpc.DUPLICATE_HANDLING_REPLACE,
}


def folder_to_proto(body: CreateFolder) -> pb.Folder:
    """Returns the message of a folder to create."""
    message = pb.Folder(name=body.name)
    set_present(
        message,
        description=body.description,
        instructions=body.instructions,
        metadata=json_to_text(body.metadata),
        embedder=given_embedder(body.embedding, body.embedding_config),
        chunk_size=body.embedding_chunk_size,
    )
    return message


def folder_update_to_proto(body: UpdateFolder, folder_id: str, request_id: str) -> folders_rpc.UpdateFolderRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none."""
    changes = {
        "name": body.name,
        "description": body.description,
        "instructions": body.instructions,
        "metadata": json_to_text(body.metadata),
    }
    message = pb.Folder(id=folder_id)
    set_present(message, **changes)
    request = folders_rpc.UpdateFolderRequest(request_id=request_id, folder=message)
    request.update_mask.paths.extend(name for name, value in changes.items() if value is not None)
    return request


def file_from_proto(file: pb.File, content: str | None = None) -> File:
    """Returns a file."""
    made, changed = moment(file, "original_create_time"), moment(file, "original_update_time")
    return File(
        id=file.id,
        source_id=file.folder_id,
        file_name=file.name,
        original_file_name=file.original_name,
        file_path=present(file, "path"),
        file_type=file.media_type or None,
        file_size=file.size_bytes,
        file_creation_date=made.isoformat() if made else None,
        file_last_modified_date=changed.isoformat() if changed else None,
        processing_status=_STATUSES.get(file.status, "pending"),
        error_message=present(file, "error_message"),
        total_chunks=present(file, "total_chunks"),
        chunks_embedded=present(file, "chunks_embedded"),
        content=content,
        created_at=moment(file, "create_time"),
        updated_at=moment(file, "update_time"),
    )


def job_from_proto(file: pb.File) -> Job:
    """Returns the processing of a file as a job."""
    status = _JOB_STATUSES.get(file.status, "created")
    more = {"type": "embedding", "source_id": file.folder_id, "file_id": file.id, "filename": file.name}
    if file.HasField("error_message"):
        more["error"] = file.error_message
    return Job(
        id=job_id_of(file.id),
        status=status,
        created_at=moment(file, "create_time"),
        updated_at=moment(file, "update_time"),
        completed_at=moment(file, "update_time") if status in {"completed", "failed"} else None,
        metadata=more,
    )


def job_id_of(file_id: str) -> str:
    """Returns the id of a file's job."""
    return "job-" + file_id.partition("-")[2]


def file_id_of(job_id: str) -> str:
    """Returns the id of a job's file."""
    return "file-" + job_id.partition("-")[2]


def size_from_proto(folder: pb.Folder) -> FolderSize:
    """Returns the size of a folder, without its files."""
    return FolderSize(
        source_id=folder.id, source_name=folder.name, file_count=folder.file_count, total_size=folder.size_bytes
    )
