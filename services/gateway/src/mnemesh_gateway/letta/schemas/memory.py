"""The JSON of blocks, archives and passages."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from mnemesh_gateway.letta.schemas.models import EmbeddingConfig, GivenEmbeddingConfig


class Block(msgspec.Struct, kw_only=True):
    """A block, as agents and lists show it."""

    id: str | None = None
    value: str
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool = False
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool = False
    label: str | None = None
    read_only: bool = False
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] = []
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class CreateBlock(msgspec.Struct, kw_only=True):
    """A block to create."""

    label: str
    value: str
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool = False
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool = False
    read_only: bool = False
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] | None = None


class UpdateBlock(msgspec.Struct, kw_only=True):
    """Changes of a block. A field that is null or absent stays as it is."""

    value: str | None = None
    label: str | None = None
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool | None = None
    read_only: bool | None = None
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] | None = None


class Archive(msgspec.Struct, kw_only=True):
    """A collection of passages."""

    id: str
    name: str
    description: str | None = None
    embedding_config: EmbeddingConfig | None = None
    vector_db_provider: str = "native"
    metadata: dict[str, Any] | None = None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class CreateArchive(msgspec.Struct, kw_only=True):
    """An archive to create."""

    name: str
    description: str | None = None
    embedding: str | None = None
    embedding_config: GivenEmbeddingConfig | None = None


class UpdateArchive(msgspec.Struct, kw_only=True):
    """Changes of an archive. A field that is null or absent stays as it is."""

    name: str | None = None
    description: str | None = None


class Passage(msgspec.Struct, kw_only=True):
    """A passage."""

    id: str
    text: str
    archive_id: str | None = None
    source_id: str | None = None
    file_id: str | None = None
    file_name: str | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    embedding: list[float] | None = None
    embedding_config: dict[str, Any] | None = None
    is_deleted: bool = False
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class CreatePassage(msgspec.Struct, kw_only=True):
    """A passage to insert."""

    text: str
    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    created_at: datetime | None = None


class CreatePassages(msgspec.Struct, kw_only=True):
    """Passages to insert."""

    passages: list[CreatePassage]


class SearchAllPassages(msgspec.Struct, kw_only=True):
    """What to search in the archives of an agent, in one archive, or in all."""

    query: str | None = None
    agent_id: str | None = None
    archive_id: str | None = None
    tags: list[str] | None = None
    tag_match_mode: Literal["any", "all"] = "any"
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50
    start_date: datetime | None = None
    end_date: datetime | None = None


class FoundPassage(msgspec.Struct, kw_only=True):
    """A passage that was found, with its score."""

    passage: Passage
    score: float
    metadata: dict[str, Any] = {}
