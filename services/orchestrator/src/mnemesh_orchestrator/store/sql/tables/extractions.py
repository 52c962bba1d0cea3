"""The tables of the extraction of facts."""

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_orchestrator.store.sql.tables.declaration import metadata, partial_index

# The progress of the extraction of facts from an agent's messages: completed turns since the last one, the newest
# processed sequence id, and what was extracted from the next messages until recall has stored it.
memory_extractions = sa.Table(
    "memory_extractions",
    metadata,
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("turns", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("due_at", UtcDateTime),
    # The process that extracts now. Each claim has a higher epoch.
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("claim_owner", sa.Text),
    sa.Column("claim_expires_at", UtcDateTime),
    sa.Column("result", sa.LargeBinary),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    partial_index("memory_extractions_due", "due_at", where="due_at IS NOT NULL"),
)

# Calls and tokens of extractions per UTC day, as "YYYY-MM-DD".
extraction_usage = sa.Table(
    "extraction_usage",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("day", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
)
