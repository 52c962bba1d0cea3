"""Adds what a provider put into its message, and the mark of events.

Revision ID: 0023
Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("is_event", sa.Boolean))
    op.add_column("messages", sa.Column("carried", sa.Text))


def downgrade() -> None:
    op.drop_column("messages", "carried")
    op.drop_column("messages", "is_event")
