"""Adds the agents with messages that are not in the word index yet.

Revision ID: 0022
Revises: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "unindexed_agents",
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
    )


def downgrade() -> None:
    """An earlier release does not find the words of messages that are not indexed; its `rebuild` restores them."""
    op.drop_table("unindexed_agents")
