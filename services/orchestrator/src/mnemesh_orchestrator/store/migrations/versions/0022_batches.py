"""Adds batches of runs, and callbacks."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("batch_id", sa.Text))
    where = sa.text("batch_id IS NOT NULL")
    op.create_index(
        "runs_by_batch", "runs", ["batch_id", "creation_number"], sqlite_where=where, postgresql_where=where
    )
    op.create_table(
        "run_batches",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text),
        sa.Column("request_fingerprint", sa.Text),
        sa.Column("was_cancelled", sa.Boolean, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("run_batches_by_creation", "run_batches", ["organization_id", "created_at", "id"])
    op.create_index("run_batches_by_request", "run_batches", ["organization_id", "request_id"], unique=True)
    op.create_table(
        "callbacks",
        sa.Column("target_id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", UtcDateTime),
        sa.Column("sent_at", UtcDateTime),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.Text),
    )
    where = sa.text("due_at IS NOT NULL")
    op.create_index("callbacks_due", "callbacks", ["due_at"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_table("callbacks")
    op.drop_table("run_batches")
    op.drop_index("runs_by_batch", "runs")
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("batch_id")
