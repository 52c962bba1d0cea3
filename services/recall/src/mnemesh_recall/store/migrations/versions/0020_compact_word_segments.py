"""Clears the word index of each agent, because its rows have a more compact form now.

The documents of all messages are noted, and indexed in the background when the service starts. Until those of an agent
are, its searches use the full-text index.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _rebuild()


def downgrade() -> None:
    _rebuild()


def _rebuild() -> None:
    for table in ("word_tail", "word_postings", "word_segments"):
        # Ids of segments are never used again: another process may have cached the segments.
        op.execute(sa.delete(sa.table(table)))
    op.execute(
        "INSERT INTO word_tail (agent_id, row_id)"
        " SELECT agent_id, row_id FROM messages WHERE search_text IS NOT NULL ORDER BY agent_id, row_id"
    )
