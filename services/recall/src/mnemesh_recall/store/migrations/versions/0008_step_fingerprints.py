"""Marks the fingerprints of committed steps as unknown: their content is encoded in another way from now on.

A step that was committed before the upgrade and is committed again after it gets its first result.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("UPDATE step_commits SET fingerprint = ''")


def downgrade() -> None:
    """Fingerprints cannot be restored. An earlier release refuses to repeat a step that was committed before."""
