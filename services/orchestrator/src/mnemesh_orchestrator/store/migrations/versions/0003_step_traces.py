"""The requests and responses of steps, the feedback and tags of steps, and the columns that lists filter by."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("feedback", sa.Text))
    op.add_column("steps", sa.Column("trace_id", sa.Text))
    op.create_index(
        "steps_by_trace",
        "steps",
        ["trace_id"],
        sqlite_where=sa.text("trace_id IS NOT NULL"),
        postgresql_where=sa.text("trace_id IS NOT NULL"),
    )
    op.create_table(
        "step_tags",
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("step_id", sa.Text, sa.ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("step_tags_by_step", "step_tags", ["step_id"])
    op.create_table(
        "step_traces",
        sa.Column("step_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.Column("model_ms", sa.Integer, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("step_traces_by_run", "step_traces", ["run_id"])
    op.create_index("step_traces_by_creation", "step_traces", ["created_at"])


def downgrade() -> None:
    op.drop_table("step_traces")
    op.drop_table("step_tags")
    op.drop_index("steps_by_trace", "steps")
    op.drop_column("steps", "trace_id")
    op.drop_column("steps", "feedback")
