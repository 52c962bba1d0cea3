"""Archives: values, their bounds, and what a call may say about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

MAX_NAME_LENGTH: Final = 500

MAX_DESCRIPTION_LENGTH: Final = 10_000

SUMMARY_TAGS: Final = 100


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who made and changed an archive, and ids that clients keep with it."""

    created_by_id: str = ""
    last_updated_by_id: str = ""
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reembedding:
    """How far a change of embedder has come."""

    embedder: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Archive:
    """A named store of passages."""

    id: str
    name: str
    description: str | None
    embedder: str
    dimension: int
    metadata: str | None
    deduplicate: bool
    created_at: datetime
    updated_at: datetime
    passage_count: int = 0
    reembedding: Reembedding | None = None
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True)
class ArchiveDraft:
    """What a caller says of an archive to be made or changed."""

    name: str
    description: str | None = None
    embedder: str = ""
    metadata: str | None = None
    deduplicate: bool = False
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True)
class ArchiveFilter:
    """Which archives a list is about."""

    agent_id: str | None = None
    name: str | None = None
    archive_ids: tuple[str, ...] = ()
    name_search: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """How much an agent has in its archives."""

    revision: int
    passage_count: int = 0
    tags: tuple[str, ...] = ()
    updated_at: datetime | None = None
    not_modified: bool = False
