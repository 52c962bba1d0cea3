"""Lowers epochs that takeovers cannot have reached, so that lease holders can overtake them.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

LARGEST = 1 << 32

_contexts = sa.table("contexts", sa.column("epoch", sa.BigInteger))


def upgrade() -> None:
    op.execute(_contexts.update().where(_contexts.c.epoch > LARGEST).values(epoch=LARGEST))


def downgrade() -> None:
    pass
