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
