"""Folders and their files."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from mnemesh_gateway.letta.schemas.models import GivenEmbeddingConfig


class CreateFolder(msgspec.Struct, kw_only=True):
    """A folder to create."""

    name: str
    description: str | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None
    embedding: str | None = None
    embedding_chunk_size: int | None = None
    embedding_config: GivenEmbeddingConfig | None = None


class UpdateFolder(msgspec.Struct, kw_only=True):
    """Changes of a folder. A field that is null or absent stays as it is."""

    name: str | None = None
    description: str | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None


class ListFolders(msgspec.Struct, kw_only=True):
    """The query of a list of folders."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    name: str | None = None


class UploadQuery(msgspec.Struct, kw_only=True):
    """How an uploaded file is named."""

    duplicate_handling: Literal["skip", "error", "suffix", "replace"] = "suffix"
    name: str | None = None


class FileQuery(msgspec.Struct, kw_only=True):
    """Whether a file has its text."""

    include_content: bool = False


class ListFiles(msgspec.Struct, kw_only=True):
    """The query of a list of files."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    include_content: bool = False


class File(msgspec.Struct, kw_only=True):
    """A file."""

    id: str
    source_id: str
    file_name: str | None = None
    original_file_name: str | None = None
    file_path: str | None = None
    file_type: str | None = None
    file_size: int | None = None
    file_creation_date: str | None = None
    file_last_modified_date: str | None = None
    processing_status: str = "pending"
    error_message: str | None = None
    total_chunks: int | None = None
    chunks_embedded: int | None = None
    content: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class MetadataQuery(msgspec.Struct, kw_only=True):
    """The query of the sizes of folders; the response can include the size of each file."""

    include_detailed_per_source_metadata: bool = False


class FileSize(msgspec.Struct, kw_only=True):
    """The size of a file in bytes."""

    file_id: str
    file_name: str
    file_size: int


class FolderSize(msgspec.Struct, kw_only=True):
    """The number of files of a folder, and their size in bytes together."""

    source_id: str
    source_name: str
    file_count: int
    total_size: int
    files: list[FileSize] = []


class FolderSizes(msgspec.Struct, kw_only=True):
    """All folders, with the sums of their files."""

    total_sources: int
    total_files: int
    total_size: int
    sources: list[FolderSize]


class Job(msgspec.Struct, kw_only=True):
    """The processing of an uploaded file."""

    id: str
    status: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    completed_at: datetime | None = None
    job_type: str = "job"
    background: bool = True
    agent_id: str | None = None
    stop_reason: str | None = None
    callback_url: str | None = None
    callback_sent_at: datetime | None = None
    callback_status_code: int | None = None
    callback_error: str | None = None
    ttft_ns: int | None = None
    total_duration_ns: int | None = None
    user_id: str | None = None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    metadata: dict[str, Any]


class ListJobs(msgspec.Struct, kw_only=True):
    """The query of a list of jobs."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    source_id: str | None = None
    active: bool = False
    ascending: bool = True
