"""Divides the documents of word segments into rows that fit into a page of SQLite.

Revision ID: 0021
Revises: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_PART_BYTES = 4_000
_KEYS_PER_SEGMENT = 1 << 16
_segments = sa.table("word_segments", sa.column("id"), sa.column("headers"), sa.column("parts"))
_documents = sa.table("word_documents", sa.column("key"), sa.column("data"))


def upgrade() -> None:
    op.create_table(
        "word_documents",
        sa.Column("key", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.add_column("word_segments", sa.Column("parts", sa.Integer, nullable=False, server_default="0"))
    conn = op.get_bind()
    is_sqlite = conn.dialect.name == "sqlite"
    if not is_sqlite:
        op.execute("ALTER TABLE word_documents ALTER COLUMN data SET STORAGE EXTERNAL")  # they are compressed already
    for id_ in conn.execute(sa.select(_segments.c.id).order_by(_segments.c.id)).scalars().all():
        is_this = _segments.c.id == id_
        headers = conn.execute(sa.select(_segments.c.headers).where(is_this)).scalar_one()
        size = _PART_BYTES if is_sqlite else len(headers)
        parts = [headers[start : start + size] for start in range(0, len(headers), size)]
        rows = [{"key": id_ * _KEYS_PER_SEGMENT + number, "data": data} for number, data in enumerate(parts)]
        conn.execute(sa.insert(_documents), rows)
        conn.execute(sa.update(_segments).where(is_this).values(parts=len(parts)))
    op.execute("ALTER TABLE word_segments DROP COLUMN headers")


def downgrade() -> None:
    op.add_column("word_segments", sa.Column("headers", sa.LargeBinary, nullable=False, server_default=""))
    conn = op.get_bind()
    for id_ in conn.execute(sa.select(_segments.c.id)).scalars().all():
        first = id_ * _KEYS_PER_SEGMENT
        of_segment = _documents.c.key.between(first, first + _KEYS_PER_SEGMENT - 1)
        parts = conn.execute(sa.select(_documents.c.data).where(of_segment).order_by(_documents.c.key)).scalars()
        conn.execute(sa.update(_segments).where(_segments.c.id == id_).values(headers=b"".join(parts)))
    op.drop_column("word_segments", "parts")
    op.drop_table("word_documents")
