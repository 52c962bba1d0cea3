"""The tables of episodes and facts, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_recall.store.sql.tables import Number, metadata


def _shared() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("row_id", Number, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("scope_kind", sa.Text, nullable=False),
        sa.Column("scope_id", sa.Text, nullable=False),
        # The agent whose erasure deletes the row: that of the scope, or of the scope's conversation.
        sa.Column("owner_agent_id", sa.Text),
        # Its id in the trace file that it was imported from.
        sa.Column("imported_id", sa.Text),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("salience", sa.Double),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("extra", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )


episodes = sa.Table(
    "episodes",
    metadata,
    *_shared(),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("turn_ids", sa.Text, nullable=False),
    sa.Column("started_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.Index("ux_episodes_id", "id", unique=True),
    sa.Index("ix_episodes_scope", "organization_id", "scope_kind", "scope_id", "created_at"),
    sa.Index("ix_episodes_owner", "owner_agent_id"),
)

facts = sa.Table(
    "facts",
    metadata,
    *_shared(),
    sa.Column("text", sa.Text, nullable=False),
    # Equal for texts that differ only in case and white space.
    sa.Column("text_key", sa.Text, nullable=False),
    sa.Column("confidence", sa.Double),
    sa.Column("valid_from", UtcDateTime),
    sa.Column("invalid_at", UtcDateTime),
    # The end of the fact before it was closed.
    sa.Column("first_invalid_at", UtcDateTime),
    sa.Column("closed_at", UtcDateTime),
    sa.Column("superseded_by_id", sa.Text),
    sa.Column("supersedes_id", sa.Text),
    sa.Column("invalid_reason", sa.Text),
    sa.Column("invalid_source", sa.Text),
    # The first of the facts that superseded one another.
    sa.Column("chain_id", sa.Text, nullable=False),
    sa.Index("ux_facts_id", "id", unique=True),
    sa.Index("ix_facts_scope", "organization_id", "scope_kind", "scope_id", "created_at"),
    sa.Index("ix_facts_text", "organization_id", "scope_kind", "scope_id", "text_key"),
    sa.Index("ix_facts_chain", "chain_id"),
    sa.Index("ix_facts_owner", "owner_agent_id"),
)

# The links by which filters find a memory: tags, messages, turns ("agent/turn") and, for facts, episodes.
memory_links = sa.Table(
    "memory_links",
    metadata,
    sa.Column("memory_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Index("ix_memory_links_value", "kind", "value"),
    sqlite_with_rowid=False,
)

# The terms of episodes and facts, analysed like those of messages.
memory_terms = sa.Table(
    "memory_terms",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("term", sa.Text, primary_key=True),
    sa.Column("scope_key", sa.Text, primary_key=True),
    sa.Column("memory_id", sa.Text, primary_key=True),
    sa.Index("ix_memory_terms_memory", "memory_id"),
    sqlite_with_rowid=False,
)
