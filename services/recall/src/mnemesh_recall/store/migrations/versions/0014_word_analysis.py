"""Empties the full-text index, because the words of texts changed: "lives" is a form of "live", "died" of "die".

The service fills the index again when it starts.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().execute(sa.text("DELETE FROM message_words"))


def downgrade() -> None:
    """An earlier release finds what it can in the words of this one; `rebuild` restores its own."""
