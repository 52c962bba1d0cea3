"""Records the version of the word analysis, what is not of this version yet, and the languages of the texts.

The words of messages, episodes and facts are analysed again in the background when the service starts.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("word_analysis", sa.Column("version", sa.Text, primary_key=True))
    op.create_table(
        "word_languages",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("language", sa.Text, primary_key=True),
    )
    op.create_table(
        "word_rebuilds",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """An earlier release finds what it can in the words of this one; `rebuild` restores its own."""
    for table in ("word_rebuilds", "word_languages", "word_analysis"):
        op.drop_table(table)
