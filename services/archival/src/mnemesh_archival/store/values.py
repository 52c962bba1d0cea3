"""The values that the stores take and return."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from mnemesh_retrieval.indexing.records import Change

from mnemesh_archival.model.continuity import Continuity
from mnemesh_archival.model.inserts import InsertEntry, InsertTarget
from mnemesh_archival.model.passages import Passage, PassageFilter, PassagePosition


@dataclass(frozen=True, slots=True)
class ArchiveRef:
    """The fields of an archive that a search needs."""

    id: str
    embedder: str
    passage_count: int
    dimension: int


@dataclass(frozen=True, slots=True)
class ErasedAgent:
    """The numbers of deleted passages and archives."""

    passages: int
    archives: int


@dataclass(frozen=True, slots=True)
class PassageScope:
    """The passages that a search or a list covers."""

    organization_id: str
    archive_ids: tuple[str, ...] | None
    """None for all archives of the organization."""
    filter: PassageFilter
    embedder: str | None = None
    """Only archives with this embedder; None for any."""

    def admits(self, passage: Passage) -> bool:
        """Returns whether a passage of the organization is in the scope, whatever the embedder."""
        inside = self.archive_ids is None or passage.archive_id in self.archive_ids
        return inside and self.filter.admits(passage)


@dataclass(frozen=True, slots=True)
class DefaultArchive:
    """The values of an agent's default archive, in case it must be created."""

    embedder: str
    dimension: int
    subject_id: str


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """A batch of passages to store."""

    target: InsertTarget
    default: DefaultArchive
    passages: tuple[Passage | None, ...]
    """None at the indexes of invalid passages. `archive_id` is empty."""
    caller_ids: frozenset[str]
    """The ids that the caller supplied. One that is taken is an error; one of ours is a replay."""
    continuity: Continuity = Continuity.AUTOMATIC
    """AUTOMATIC, CONTINUOUS or SEPARATE."""
    restores: bool = False
    """Whether passages of the archive may exist, as those of an import that is repeated."""


@dataclass(frozen=True, slots=True)
class StoredInsert:
    """The result of storing a batch."""

    entries: tuple[InsertEntry, ...]
    """One for each passage of the batch, in order."""
    new: tuple[Passage, ...]
    """The passages that this call stored; none on a replay."""
    changes: tuple[Change, ...]
    """The changes that remain to be applied to the index."""


@dataclass(frozen=True, slots=True)
class PassagePoint:
    """The point of a passage in the vector index."""

    embedder: str
    point_id: UUID


class Equals(NamedTuple):
    """A condition: the passages with a fingerprint; see mnemesh_retrieval.ranking.scores."""

    fingerprint: str
    limit: int
    """The number of passages that are looked at."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Passages and those around them."""

    positions: Sequence[PassagePosition]
    """In no particular order."""
    questions: Mapping[UUID, str]
    """The texts of those that ask a question."""
    equal: Mapping[UUID, str]
    """The texts of the passages with the fingerprint."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The passages around one in its dialogue or document, in insertion order."""

    before: tuple[Passage, ...]
    after: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class ReembeddingJob:
    """A change of an archive's embedder that this process has claimed."""

    organization_id: str
    archive_id: str
    generation: int
    target: str
    """The new embedder."""


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Passages that must be indexed in the collection of the new embedder."""

    changes: tuple[Change, ...]
    """Empty if all passages have been copied."""
    position: int
    """The position of the last one."""


@dataclass(frozen=True, slots=True)
class IndexedPassage:
    """The part of a passage that the index has: its text, and the fields by which searches filter."""

    text: str
    organization_id: str
    archive_id: str
    tags: tuple[str, ...]
    source: str
    agent_id: str | None
    file_id: str | None
    folder_id: str | None
    created_at: datetime
    given_vector: bytes | None = None
    """The vector that came with the passage, if the embedder of the collection made it; see model/given_vectors.py."""
