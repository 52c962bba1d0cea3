"""The SQL tables: archives, the agents that they are attached to, the ledger of passages, and open operations."""

from __future__ import annotations

import sqlalchemy as sa
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import UtcDateTime

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
    # pending (recorded, not yet in the index), live, or deleted (a tombstone, kept longer than any retry).
    sa.Column("state", sa.Text, nullable=False),
    # The tags that the counters include, so that a deletion subtracts exactly these.
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text),
    # The change of embedder that copied the passage; reset to zero by every update.
    sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
    # The number of updates, so that a copy of an earlier version is recognized.
    sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
    # The position in the insertion order of the archive; unique there.
    sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
    # The source, writer and file. Neighbours of the same strand are its context in ranking.
    sa.Column("strand", sa.Text, nullable=False, server_default=""),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("deleted_at", UtcDateTime),
    sa.Index("passages_by_deletion", "deleted_at"),
    # Covers the columns that a search reads of neighbours.
    sa.Index(
        "passages_by_place",
        *("organization_id", "archive_id", "position", "state", "point_id", "strand", "created_at"),
    ),
    sa.Index("passages_by_generation", "organization_id", "archive_id", "generation"),
    sa.Index("passages_by_content", "organization_id", "archive_id", "content_hash"),
    sa.Index("passages_by_agent", "organization_id", "agent_id"),
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
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("claimed_until", UtcDateTime, nullable=False),
    sa.Column("writers_wait_until", UtcDateTime),
)

operations = sa.Table(
    "operations",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("passage_id", sa.Text),
    # The operation as JSON.
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("claimed_until", UtcDateTime, nullable=False, index=True),
    sa.Index("operations_by_passage", "organization_id", "passage_id"),
)

request_ledger = ledger_table(metadata)
