"""The tables of the outbox, which a service adds to the metadata of its database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

_ROW_ID: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


@dataclass(frozen=True, slots=True)
class IndexTables:
    """The tables of the outbox."""

    changes: sa.Table
    """`index_outbox`: a row says that the index may differ from the record of a subject in a collection."""
    holders: sa.Table
    """`index_holders`: for each collection, the replica that checks or rebuilds it, and the version of its
    words; and the last flushed state."""


def outbox_tables(metadata: sa.MetaData) -> IndexTables:
    """Adds the tables of the outbox to the metadata of a service. A revision of the service creates them."""
    changes = sa.Table(
        "index_outbox",
        metadata,
        sa.Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        # The replica that applies the change; only where several replicas share an index.
        sa.Column("claimed_by", sa.Text),
        sa.Column("claimed_until", UtcDateTime),
        sa.Index("ix_index_outbox_subject", "subject_id"),
        # SQLite would give the ids of deleted rows to new ones.
        sqlite_autoincrement=True,
    )
    holders = sa.Table(
        "index_holders",
        metadata,
        sa.Column("collection", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    return IndexTables(changes, holders)
