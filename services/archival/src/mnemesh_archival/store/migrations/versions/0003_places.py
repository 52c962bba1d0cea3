"""Adds the positions of passages in their archives, by which a search finds neighbours."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("passages", sa.Column("position", sa.BigInteger(), nullable=False, server_default="0"))
    # Only the index knows the files of earlier passages, so those of one archive and agent share a strand.
    op.add_column("passages", sa.Column("strand", sa.Text(), nullable=False, server_default=""))
    op.execute(
        """
        UPDATE passages SET position = numbered.position, strand = COALESCE(passages.agent_id, '')
        FROM (
            SELECT organization_id, id,
                   row_number() OVER (PARTITION BY organization_id, archive_id ORDER BY created_at, id) AS position
            FROM passages
        ) AS numbered
        WHERE numbered.organization_id = passages.organization_id AND numbered.id = passages.id
        """
    )
    op.create_index("passages_by_position", "passages", ["organization_id", "archive_id", "position"], unique=False)


def downgrade() -> None:
    op.drop_index("passages_by_position", table_name="passages")
    op.drop_column("passages", "strand")
    op.drop_column("passages", "position")
