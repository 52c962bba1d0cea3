"""The order of runs by creation, which a clock that is set back does not change."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

NUMBER = {
    "sqlite": "UPDATE runs SET creation_number = "
    "CAST(strftime('%s', created_at) AS INTEGER) * 1000000 + CAST(substr(created_at, 21, 6) AS INTEGER)",
    "postgresql": "UPDATE runs SET creation_number = CAST(extract(epoch FROM created_at) * 1000000 AS BIGINT)",
}


def upgrade() -> None:
    op.add_column("runs", sa.Column("creation_number", sa.BigInteger, nullable=False, server_default="0"))
    op.execute(sa.text(NUMBER[op.get_bind().dialect.name]))
    op.drop_index("runs_by_creation", "runs")
    op.drop_index("runs_by_agent", "runs")
    op.create_index("runs_by_number", "runs", ["organization_id", "creation_number", "id"])
    op.create_index("runs_by_agent_number", "runs", ["agent_id", "creation_number", "id"])


def downgrade() -> None:
    op.drop_index("runs_by_agent_number", "runs")
    op.drop_index("runs_by_number", "runs")
    op.create_index("runs_by_agent", "runs", ["agent_id", "created_at", "id"])
    op.create_index("runs_by_creation", "runs", ["organization_id", "created_at", "id"])
    op.drop_column("runs", "creation_number")
