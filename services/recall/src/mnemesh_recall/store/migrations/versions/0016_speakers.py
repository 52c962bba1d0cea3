"""Stores the speakers of searchable messages: the name of a message, or else the one at the beginning of its text.

The stored texts are case-folded, so that the words before a colon count as a name in small letters, too.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import re
from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

BATCH: Final = 1_000
MAX_NAME: Final = 40
_WORD: Final = r"[^\W\d_][\w'’.-]*"
_SPEAKER: Final = re.compile(rf"\s*({_WORD}(?: {_WORD}){{0,2}})(?::[ \t]+|：\s*)(?=\S)")
_m = sa.table("messages", *map(sa.column, ("row_id", "name", "search_text", "speaker"))).c


def upgrade() -> None:
    op.add_column("messages", sa.Column("speaker", sa.Text()))
    conn, last = op.get_bind(), 0
    beginning = sa.func.substr(_m.search_text, 1, 2 * MAX_NAME)
    may_have_one = sa.or_(_m.name.is_not(None), beginning.contains(":"), beginning.contains("："))
    read = sa.select(_m.row_id, _m.name, beginning.label("beginning")).where(
        _m.row_id > sa.bindparam("last"), _m.search_text.is_not(None), may_have_one
    )
    write = sa.update(_m.row_id.table).where(_m.row_id == sa.bindparam("p_row"))
    write = write.values(speaker=sa.bindparam("p_speaker"))
    while rows := conn.execute(read.order_by(_m.row_id).limit(BATCH), {"last": last}).all():
        found = ((row.row_id, (row.name or _leading_name(row.beginning)).casefold()) for row in rows)
        if changes := [{"p_row": row_id, "p_speaker": speaker} for row_id, speaker in found if speaker]:
            conn.execute(write, changes)
        last = rows[-1].row_id


def downgrade() -> None:
    op.drop_column("messages", "speaker")


def _leading_name(beginning: str) -> str:
    found = _SPEAKER.match(beginning)
    return found[1] if found is not None and len(found[1]) <= MAX_NAME else ""
