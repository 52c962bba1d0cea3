"""Adds what a search needs to know of a passage and its neighbours: continuity, speaker, questions and fingerprint.

The next start derives them from the texts (store/sql/continuity_rows.py). Until then, a row has no fingerprint.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

LIVE = sa.text("deleted_at IS NULL")
UNDERIVED = sa.text("fingerprint = '' AND deleted_at IS NULL")
POSITION = ["organization_id", "archive_id", "position", "deleted_at", "point_id", "strand", "created_at"]


def upgrade() -> None:
    for name, kind, default in (
        ("continuity", sa.SmallInteger(), "0"),
        ("speaker", sa.Text(), ""),
        ("asking", sa.SmallInteger(), "0"),
        ("fingerprint", sa.Text(), ""),
    ):
        op.add_column("passages", sa.Column(name, kind, nullable=False, server_default=default))
    op.create_index(
        "passages_by_fingerprint",
        "passages",
        ["organization_id", "fingerprint", "archive_id"],
        sqlite_where=LIVE,
        postgresql_where=LIVE,
    )
    op.create_index(
        "passages_underived",
        "passages",
        ["organization_id", "archive_id", "position"],
        sqlite_where=UNDERIVED,
        postgresql_where=UNDERIVED,
    )
    op.drop_index("passages_by_position", table_name="passages")
    op.create_index("passages_by_position", "passages", [*POSITION, "continuity", "speaker", "asking"])


def downgrade() -> None:
    op.drop_index("passages_by_position", table_name="passages")
    op.create_index("passages_by_position", "passages", POSITION)
    for name in ("passages_underived", "passages_by_fingerprint"):
        op.drop_index(name, table_name="passages")
    for name in ("fingerprint", "asking", "speaker", "continuity"):
        op.drop_column("passages", name)
