"""The SQL tables: archives, the agents that they are attached to, passages, changes of embedders, and the outbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.audit import audit_table
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.owners import Owners
from mnemesh_retrieval.indexing.outbox import Change, outbox_tables

from mnemesh_archival.model.inserts import InsertEntry, InsertTarget
from mnemesh_archival.model.passages import Continuity, Passage, PassageFilter, PassagePosition

metadata = sa.MetaData()

archives = sa.Table(
    "archives",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("name_folded", sa.Text, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("embedder", sa.Text, nullable=False),
    sa.Column("dimension", sa.Integer, nullable=False),
    sa.Column("metadata", sa.Text),
    sa.Column("deduplicate", sa.Boolean, nullable=False),
    sa.Column("passage_count", sa.BigInteger, nullable=False),
    # Raised by every change of its passages; revisions of summaries are sums of these.
    sa.Column("revision", sa.BigInteger, nullable=False),
    # The number of changes of its embedder that were started.
    sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("changed_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Column("created_by_id", sa.Text, nullable=False),
    sa.Column("last_updated_by_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text),
    sa.Column("template_id", sa.Text),
    sa.Column("base_template_id", sa.Text),
    sa.Column("deployment_id", sa.Text),
    sa.Column("entity_id", sa.Text),
    # The agent whose first insert created the archive, which is deleted with it; NULL for archives of callers.
    sa.Column("created_for_agent_id", sa.Text),
    # Set on a tombstone. The row is kept so that late writes are refused and the id is never used again.
    sa.Column("deleted_at", UtcDateTime),
    sa.Index("archives_by_time", "organization_id", "created_at", "id"),
    sa.Index("archives_by_name", "organization_id", "name", "id"),
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    # The part of the revision of its summary that is not of its archives; raised when one is attached or detached.
    sa.Column("base_revision", sa.BigInteger, nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
    sa.Column("erased_at", UtcDateTime),
)

archive_agents = sa.Table(
    "archive_agents",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("archive_id", sa.Text, primary_key=True),
    sa.Column("attached_at", UtcDateTime, nullable=False),
    sa.Index("archive_agents_by_archive", "organization_id", "archive_id", "agent_id"),
)

archive_tags = sa.Table(
    "archive_tags",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("archive_id", sa.Text, primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Column("uses", sa.BigInteger, nullable=False),
)

passages = sa.Table(
    "passages",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("archive_id", sa.Text, nullable=False),
    sa.Column("point_id", sa.Text, nullable=False, unique=True),
    # Each tag between separators; see passage_rows.encoded_tags.
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text),
    # The position in the insertion order of the archive; unique there.
    sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
    # The source, writer and file. Only passages of the same strand belong together.
    sa.Column("strand", sa.Text, nullable=False, server_default=""),
    sa.Column("created_at", UtcDateTime, nullable=False),
    # Set on a tombstone, which is kept longer than any retry and has nothing of the content.
    sa.Column("deleted_at", UtcDateTime),
    # Empty on a tombstone, like the text.
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("file_id", sa.Text),
    sa.Column("folder_id", sa.Text),
    sa.Column("file_name", sa.Text),
    sa.Column("chunk_index", sa.Integer),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    # The size of the passage in a response, in bytes, by which pages are bounded.
    sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("metadata", sa.Text),
    # SQLite reads a row up to the last column that a query needs; the columns after this one are read from indexes.
    sa.Column("text", sa.Text, nullable=False),
    # Whether the passage belongs together with its neighbours; see model/continuity.py.
    sa.Column("continuity", sa.SmallInteger, nullable=False, server_default="0"),
    # The name of the speaker at the beginning of the text, and whether the text asks a question.
    sa.Column("speaker", sa.Text, nullable=False, server_default=""),
    sa.Column("asking", sa.SmallInteger, nullable=False, server_default="0"),
    # The same for texts that are equal in words; see mnemesh_retrieval.ranking.scores.
    sa.Column("fingerprint", sa.Text, nullable=False, server_default=""),
    # The vector of the text that came with the passage, and its embedder; see model/given_vectors.py. They are here so
    # that the statements that read, change and delete the text also do that with them.
    sa.Column("given_embedder", sa.Text),
    sa.Column("given_vector", sa.LargeBinary),
)


def _index(name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool]) -> None:
    """Declares an index of the rows that fulfil a condition."""
    sa.Index(name, *columns, sqlite_where=where, postgresql_where=where)


_p = passages.c
_LIVE = _p.deleted_at.is_(None)
_index("passages_by_time", _p.organization_id, _p.archive_id, _p.created_at, _p.id, where=_LIVE)
_index("passages_by_organization", _p.organization_id, _p.created_at, _p.id, where=_LIVE)
_index("passages_by_content", _p.organization_id, _p.archive_id, _p.content_hash, where=_LIVE)
_index("passages_by_fingerprint", _p.organization_id, _p.fingerprint, _p.archive_id, where=_LIVE)
_index("passages_by_agent", _p.organization_id, _p.agent_id, where=_p.agent_id.is_not(None))
_index("passages_by_file", _p.organization_id, _p.file_id, _p.created_at, _p.id, where=_p.file_id.is_not(None))
_index("passages_by_deletion", _p.deleted_at, where=_p.deleted_at.is_not(None))
# Covers the columns that a search reads of neighbours.
sa.Index(
    "passages_by_position",
    *(_p.organization_id, _p.archive_id, _p.position, _p.deleted_at, _p.point_id, _p.strand, _p.created_at),
    *(_p.continuity, _p.speaker, _p.asking),
)

reembeddings = sa.Table(
    "reembeddings",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("archive_id", sa.Text, primary_key=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    # The new embedder. The archive's row has the old one until the switch.
    sa.Column("embedder", sa.Text, nullable=False),
    sa.Column("dimension", sa.Integer, nullable=False),
    # The positions of the last passage that was copied, and of the last passage when the change started. Later ones are
    # written to both collections.
    sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_position", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("done", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("claimed_until", UtcDateTime, nullable=False),
)

# The collections that an archive has left. Its points there are deleted after `remove_after`.
left_collections = sa.Table(
    "left_collections",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("archive_id", sa.Text, primary_key=True),
    sa.Column("embedder", sa.Text, primary_key=True),
    sa.Column("remove_after", UtcDateTime, nullable=False, index=True),
    # The position of the last passage whose point was deleted.
    sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
)

index_tables = outbox_tables(metadata)
request_ledger = ledger_table(metadata)
audit_entries = audit_table(metadata)


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


def owners(database: Database) -> Owners:
    """Returns what finds the agents to which things belong: those to which their archive is attached."""
    own, links = archives.c, archive_agents.c
    is_attached = sa.and_(links.organization_id == own.organization_id, links.archive_id == own.id)
    is_inside = sa.and_(passages.c.organization_id == own.organization_id, passages.c.archive_id == own.id)
    held = archives.outerjoin(archive_agents, is_attached)
    selects = {
        "archive": sa.select(own.organization_id, own.id, links.agent_id).select_from(held),
        "passage": sa.select(passages.c.organization_id, passages.c.id, links.agent_id).select_from(
            held.join(passages, is_inside)
        ),
    }
    return Owners(database, **{name: select.where(own.deleted_at.is_(None)) for name, select in selects.items()})
