"""Archives and passages: values, their bounds, and what a call may say about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from mnemesh_kit.errors import InvalidArgument

from mnemesh_archival.model.texts import checked_line

MAX_TEXT_BYTES: Final = 1_000_000
MAX_PASSAGES: Final = 1_000
MAX_TAGS: Final = 100
MAX_TAG_LENGTH: Final = 200


class PassageSource(IntEnum):
    """Where a passage came from."""

    UNSPECIFIED = 0
    AGENT = 1
    FILE = 2
    IMPORT = 3
    OWNER = 4


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
class InsertTarget:
    """Where an insert goes: an archive, or an agent's first one."""

    archive_id: str | None = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class InsertFailure:
    """Why one passage of a batch was not stored."""

    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InsertOutcome:
    """What became of one passage of a batch: exactly one of the three."""

    passage: Passage | None = None
    failure: InsertFailure | None = None
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


class PassagePosition(NamedTuple):
    """Where a passage stands among those of its archive, in the order of insertion.

    Passages of one `strand` are of one writer and one file. A tuple, for every search reads hundreds.
    """

    point_id: UUID
    archive_id: str
    strand: str
    position: int
    created_at: datetime


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
