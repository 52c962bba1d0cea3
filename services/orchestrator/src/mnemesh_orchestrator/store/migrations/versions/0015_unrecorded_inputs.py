"""Ended runs whose input recall may not have yet."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("input_unrecorded", sa.Boolean, nullable=False, server_default=sa.false()))
    where = sa.text("input_unrecorded")
    op.create_index("runs_unrecorded", "runs", ["updated_at"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("runs_unrecorded", "runs")
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("input_unrecorded")
