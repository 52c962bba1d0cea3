"""The records of a collection, from which its points are derived, and the changes and claims of the outbox."""

from collections.abc import Collection as AbstractCollection
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.filters import Filter
from mnemesh_retrieval.index import Collection, Payload


class ChangeKind(StrEnum):
    """The kind of subject of a change."""

    RECORD = "record"
    """One record was stored, changed or deleted."""
    GROUP = "group"
    """All records of a group were deleted, and none of them is ever stored again."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the outbox: the index may differ from a record, or from all records of a group."""

    row_id: int
    collection: str
    """The key of the collection, as the service registered it."""
    kind: ChangeKind
    subject_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one replica to apply changes, until a time. Other replicas leave them alone until then."""

    instance_id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """The current state of a record, as the index should have it."""

    text: str
    """The text to embed."""
    payload: Payload = field(default_factory=dict)
    words: str = ""
    """The text that words are matched against, in an index with words."""
    vector: Vector | None = None
    """A vector of `text` that the collection's embedder made earlier: the text is not embedded again."""


class Source(Protocol):
    """The records of one collection, from which its points are derived. A service implements it over its stores.

    A subject is the id of a record in the outbox; every subject has exactly one point id.
    """

    @property
    def schema(self) -> Collection:
        """The collection in the index. If the index has none of that name, it is created and filled."""

    @property
    def embedder(self) -> Embedder:
        """The embedder of the collection."""

    @property
    def words_version(self) -> str | None:
        """The version of the analysis of `Record.words`; None in an index without words.

        If the points of the collection have words of another version, these are replaced in the background.
        """

    @property
    def keep_without_vector(self) -> bool:
        """True keeps the point of a record without a vector, so that words find it; False deletes the point."""

    async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
        """Returns the current records of these subjects. One that is gone, or belongs elsewhere, has no entry."""

    def point_id(self, subject: str) -> UUID:
        """Returns the point id of a subject."""

    def subject_of(self, point_id: UUID) -> str:
        """Returns the subject of a point that has no record, so that a change can delete it."""

    def group_filter(self, group: str) -> Filter:
        """Returns the filter for all points of a group."""

    async def list_subjects(self, after: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """Returns pairs of a position and a subject, of all records of the collection, in the order of positions.

        Args:
            after: the position after which to continue; None for the beginning. Records that are stored later may be
                before it: they have changes of their own.
            limit: the largest number.
        """

    async def find_existing(self, points: Sequence[UUID]) -> AbstractCollection[UUID]:
        """Returns those of the points that have a record in the collection."""

    async def count(self) -> int:
        """Returns the number of records of the collection."""
