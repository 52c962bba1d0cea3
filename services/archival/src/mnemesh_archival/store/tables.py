"""The SQL tables: archives, the agents that they are attached to, passages, changes of embedders, and the outbox."""

from typing import Any

import sqlalchemy as sa
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import UtcDateTime
from mnemesh_retrieval.indexing.outbox import outbox_tables

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
