"""Archives and passages: values, their bounds, and what a call may say about them."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from mnemesh_kit.errors import InvalidArgument

MAX_TEXT_BYTES: Final = 1_000_000
MAX_PASSAGES: Final = 1_000
MAX_TAGS: Final = 100
MAX_TAG_LENGTH: Final = 200
MAX_NAME_LENGTH: Final = 500
MAX_DESCRIPTION_LENGTH: Final = 10_000
MAX_METADATA_BYTES: Final = 100_000
MAX_QUERY_LENGTH: Final = 10_000
MAX_HITS: Final = 100
DEFAULT_HITS: Final = 10
SUMMARY_TAGS: Final = 100


class PassageSource(IntEnum):
    """Where a passage came from."""

    UNSPECIFIED = 0
    AGENT = 1
    FILE = 2
    IMPORT = 3
    OWNER = 4


class SearchKind(Enum):
    """By words, by meaning, or both."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


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
class PassageDraft:
    """A passage as its writer gives it."""

    text: str
    id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    source: PassageSource = PassageSource.UNSPECIFIED
    agent_id: str | None = None
    file_id: str | None = None
    folder_id: str | None = None
    file_name: str | None = None
    chunk_index: int | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of long-term memory."""

    id: str
    archive_id: str
    text: str
    tags: tuple[str, ...]
    metadata: str | None
    source: PassageSource
    agent_id: str | None
    file_id: str | None
    folder_id: str | None
    file_name: str | None
    chunk_index: int | None
    created_at: datetime
    updated_at: datetime
    embedding: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PassageChange:
    """New values of some fields of a passage; `fields` names which."""

    fields: frozenset[str]
    updated_at: datetime
    text: str = ""
    tags: tuple[str, ...] = ()
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where an insert goes: an archive, or an agent's first one."""

    archive_id: str | None = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one passage of a batch was not stored."""

    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one passage of a batch: exactly one of the three."""

    passage: Passage | None = None
    failure: Failure | None = None
    deleted_id: str | None = None
    archive_id: str = ""
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class PassageFilter:
    """Which passages a list or a search is about. Times are UTC, the upper bound excluded."""

    agent_id: str | None = None
    archive_id: str | None = None
    tags: tuple[str, ...] = ()
    every_tag: bool = False
    file_id: str | None = None
    folder_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    sources: tuple[PassageSource, ...] = ()

    @property
    def narrows(self) -> bool:
        """Whether it leaves out passages of the archives that it is about."""
        bounds = (self.file_id, self.folder_id, self.since, self.until)
        return bool(self.tags or self.sources) or any(bound is not None for bound in bounds)


class Place(NamedTuple):
    """Where a passage stands among those of its archive, in the order of insertion.

    Passages of one `strand` are of one writer and one file. A tuple, for every search reads hundreds.
    """

    point_id: UUID
    archive_id: str
    strand: str
    position: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A passage that was found, with its place in each list that holds it."""

    passage: Passage
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """How much an agent has in its archives."""

    revision: int
    passage_count: int = 0
    tags: tuple[str, ...] = ()
    updated_at: datetime | None = None
    not_modified: bool = False


def checked_text(text: str, where: str) -> str:
    """The text of a passage, or InvalidArgument naming the field."""
    if "\0" in text:
        raise InvalidArgument(f"{where} must not hold NUL characters.", field=where)
    if not text.strip():
        raise InvalidArgument(f"{where} must not be blank.", field=where)
    if len(text) > MAX_TEXT_BYTES or len(text.encode()) > MAX_TEXT_BYTES:
        raise InvalidArgument(f"{where} must be at most {MAX_TEXT_BYTES:,} bytes of UTF-8.", field=where)
    return text


def checked_tags(tags: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The tags without duplicates, in their order."""
    unique = tuple(dict.fromkeys(tags))
    if len(unique) > MAX_TAGS:
        raise InvalidArgument(f"{where} must be at most {MAX_TAGS}.", field=where)
    for tag in unique:
        checked_line(tag, where, MAX_TAG_LENGTH)
    return unique


def checked_line(value: str, where: str, longest: int) -> str:
    """A single line that is not blank and holds no control characters."""
    if not value.strip():
        raise InvalidArgument(f"{where} must not be blank.", field=where)
    return checked_free(value, where, longest, controls="")


def checked_free(value: str, where: str, longest: int, controls: str = "\t\n\r") -> str:
    """Text of bounded length without control characters, but for the given ones."""
    if len(value) > longest:
        raise InvalidArgument(f"{where} must be at most {longest:,} characters.", field=where)
    if any(unicodedata.category(char) == "Cc" and char not in controls for char in value):
        raise InvalidArgument(f"{where} must not hold control characters.", field=where)
    return value


def checked_metadata(metadata: str | None, where: str) -> str | None:
    """JSON text of an object, kept as it came."""
    if metadata is None:
        return None
    if len(metadata.encode()) > MAX_METADATA_BYTES:
        raise InvalidArgument(f"{where} must be at most {MAX_METADATA_BYTES:,} bytes.", field=where)
    try:
        parsed = json.loads(metadata)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or "\0" in metadata:
        raise InvalidArgument(f"{where} must be a JSON object.", field=where)
    return metadata
