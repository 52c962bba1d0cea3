"""Computes the keys of the texts of facts again: articles and punctuation make no difference any more.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import hashlib
import unicodedata

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_BATCH = 1_000
_CLOSING = ".,;:!?…\"'“”‘’«»()[]"


def upgrade() -> None:
    conn, last = op.get_bind(), 0
    facts = sa.table("facts", sa.column("row_id"), sa.column("text"), sa.column("text_key"))
    while rows := conn.execute(
        sa.select(facts.c.row_id, facts.c.text).where(facts.c.row_id > last).order_by(facts.c.row_id).limit(_BATCH)
    ).all():
        of_row = facts.update().where(facts.c.row_id == sa.bindparam("p_row"))
        changes = [{"p_row": row.row_id, "p_key": _key(row.text)} for row in rows]
        conn.execute(of_row.values(text_key=sa.bindparam("p_key")), changes)
        last = rows[-1].row_id


def downgrade() -> None:
    """An earlier release stores its own keys with new facts, and does not find the same text among the others."""


def _key(text: str) -> str:
    words = unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("n't", " not").split()
    bare = [bare for word in words if (bare := word.strip(_CLOSING))]
    kept = [word for word in bare if word not in ("a", "an", "the")] or bare or words
    return hashlib.sha256(" ".join(kept).encode()).hexdigest()[:32]
